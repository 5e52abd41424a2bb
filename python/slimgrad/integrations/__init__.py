"""Callbacks for the training loops of others. Nothing is imported here: each module needs a package
that slimgrad does not."""
