"""How tokens are made: decoding with a tree policy, its backends, and the records it leaves. Read `decode` first."""
