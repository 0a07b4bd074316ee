"""What a run amounted to: summary, lower bound, tail, timeline and page, from its events.

`report.text` puts it into words; it is imported apart, since it needs rich.
"""

from rolloutkit.report.outputs import report_directory, write_outputs, write_page_file
from rolloutkit.report.statistics import RunStatistics
from rolloutkit.report.summary import Summary, TailSample

__all__ = [
    "RunStatistics",
    "Summary",
    "TailSample",
    "report_directory",
    "write_outputs",
    "write_page_file",
]
