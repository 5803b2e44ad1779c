"""The sentences of the report: answers, titles and figures."""
