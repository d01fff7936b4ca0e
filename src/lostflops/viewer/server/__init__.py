"""Hands out runs to a browser: a read-only web server on this machine's own address.

Everything that protects it is on by default and is in `guard`: a one-time token, a cookie that scripts
cannot read, a list of names under which it answers, and a policy under which the page can load nothing from
elsewhere.
"""
