"""The command line: each module declares a group's options, calls a function and prints what it returns."""
