"""What the jobs share.

It is a package of its own because ``spark-submit`` puts the folder of the program first on the path: a module next to
the jobs would hide any module of the same name, such as trio's dependency ``outcome``.
"""
