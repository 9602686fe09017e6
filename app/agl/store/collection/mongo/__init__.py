"""Collections in MongoDB."""

from agl.store.collection.mongo.collection import MongoBasedCollection
from agl.store.collection.mongo.collections import MongoLightningCollections
from agl.store.collection.mongo.errors import resolve_mongo_error_type
from agl.store.collection.mongo.key_value import MongoBasedKeyValue
from agl.store.collection.mongo.pool import MongoClientPool
from agl.store.collection.mongo.queue import MongoBasedQueue

__all__ = [
    "MongoBasedCollection",
    "MongoBasedKeyValue",
    "MongoBasedQueue",
    "MongoClientPool",
    "MongoLightningCollections",
    "resolve_mongo_error_type",
]
