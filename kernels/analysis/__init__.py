"""Operations, bytes, time and reach of the calls of a plan."""
