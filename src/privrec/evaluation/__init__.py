"""Full-ranking evaluation with on-device adaptation, and the reference recommenders."""
