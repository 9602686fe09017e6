"""Collections in MongoDB."""

from agl.store.collection.mongo.errors import resolve_mongo_error_type
from agl.store.collection.mongo.pool import MongoClientPool

__all__ = ["MongoClientPool", "resolve_mongo_error_type"]
