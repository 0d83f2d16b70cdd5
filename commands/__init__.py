"""The parts of the command line that more than one command needs. `sage_tune.py` holds the commands."""
