"""The version, apart from the package's front page, which may not be imported from below."""

VERSION = "0.1.0"
