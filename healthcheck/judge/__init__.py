"""What measurements are worth: held against what is possible and against what was published. Pure."""
