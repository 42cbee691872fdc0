"""Pages, charts and amounts: the parts that reports, profiles and checks are drawn with."""
