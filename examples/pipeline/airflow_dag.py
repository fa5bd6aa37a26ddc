"""An Airflow DAG: every night yesterday's orders are archived, counted and audited.

Airflow gives every task its day. A cleared task, or `airflow backfill create`, does the same day again and leaves the
same result. A task fails by the command's exit code; the last line of its output is the result as JSON,
which Airflow keeps (XCom).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

BROKER = "--bootstrap {{ var.value.headrace_bootstrap }}"
DAY = "--since {{ data_interval_start.isoformat() }} --until {{ data_interval_end.isoformat() }}"

with DAG(
    dag_id="headrace_orders",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=True,
    max_active_runs=2,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
) as dag:
    # A folder a day: a repeated run finds its offsets there and adds nothing.
    archive = BashOperator(
        task_id="archive",
        bash_command=f"headrace pipeline archive --json {BROKER} --topics orders {DAY} --to /srv/orders/{{{{ ds }}}}",
    )
    totals = BashOperator(
        task_id="totals",
        bash_command=(
            "spark-submit /opt/jobs/daily_totals.py --bootstrap {{ var.value.headrace_bootstrap }} "
            "--day {{ ds }} --to /srv/totals"
        ),
    )
    # Exit code 1 is a verdict (messages are missing), and 2 that there is none: both fail the task.
    audit = BashOperator(
        task_id="audit",
        bash_command=f"headrace pipeline audit --json {BROKER} --topics orders {DAY}",
    )
    [archive, totals] >> audit
