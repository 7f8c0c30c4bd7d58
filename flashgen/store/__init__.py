"""tuned_configs on disk: the data model, strict YAML, atomic files, lookup and merge."""
