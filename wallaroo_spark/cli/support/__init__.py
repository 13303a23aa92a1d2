"""``wallaroo-spark support``: an archive for the report of a defect, with secrets removed."""
