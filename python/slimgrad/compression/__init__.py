"""compress(model): what is converted, the gates behind its layers, their state and reports."""
