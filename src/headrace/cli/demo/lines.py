from headrace.cli.demo.report import Report
from headrace.cli.demo.stage import Stage


def missing() -> str:
    return "not yet"


async def play(stage: Stage) -> Report:
    return Report("Service logs", "")
