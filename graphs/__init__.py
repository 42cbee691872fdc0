if __name__ != "engine.graphs":
    raise ImportError(f"import engine.graphs, not {__name__}: two copies would mean two registries")
