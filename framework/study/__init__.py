"""What is each technique worth: arms, isolated runs, statistics and the report. Nothing here imports torch."""
