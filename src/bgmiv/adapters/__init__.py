"""Faces for other libraries: scikit-learn, EconML and DoWhy. None of them is needed to import this package."""
