"""What a task cannot process by a defect of this package: found, noted, and set aside by an operator."""
