"""Saved models: folders of JSON and arrays that are safe to open whoever wrote them.

Nothing here knows of a method; what a saved fit holds is said by the estimator that saves it.
"""
