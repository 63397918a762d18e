"""Which heads read images: ``kvcomp-eval heads``, the offline step of SparseMM (arXiv 2506.05344, section 3.2)."""
