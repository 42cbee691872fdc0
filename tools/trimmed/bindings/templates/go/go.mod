module @name@

go 1.18
