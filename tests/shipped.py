"""The models and clusters of config/, read once for all tests."""

from scaling.study.load import load_clusters, load_models
from tests.conftest import PROJECT

MODELS = load_models(PROJECT / "config" / "models.yaml")
CLUSTERS = load_clusters(PROJECT / "config" / "clusters.yaml")
