"""What the jobs have in common.

It is a package of its own because ``spark-submit`` puts the folder of the program first on the path: a module beside
the jobs would hide one of the same name from everybody, as trio's ``outcome``.
"""
