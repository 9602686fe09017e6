"""Resources: what an attempt works with, in versioned, named bundles."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from agl.types.bounds import Identifier, StorableDict
from agl.types.rollout import AttemptedRollout, Rollout

logger = logging.getLogger(__name__)


class Resource(BaseModel):
    """Base of every resource; ``resource_type`` tells them apart on the wire."""

    resource_type: Any


class LLM(Resource):
    """A language model behind an OpenAI-compatible endpoint."""

    resource_type: Literal["llm"] = "llm"
    endpoint: str
    model: str
    api_key: str | None = None
    sampling_parameters: StorableDict = Field(default_factory=dict)

    def get_base_url(self, *args: Any, **kwargs: Any) -> str:
        """The URL to hand to an OpenAI client."""
        return self.endpoint


class ProxyLLM(LLM):
    """A model behind the LLM proxy, whose URL names the rollout and attempt it serves."""

    resource_type: Literal["proxy_llm"] = "proxy_llm"  # type: ignore[assignment] # narrower tag of the same union

    def __getattribute__(self, name: str) -> Any:
        if name == "endpoint":
            logger.warning(
                "Reading ProxyLLM.endpoint gives a URL without rollout and attempt; "
                "use get_base_url(rollout_id, attempt_id)"
            )
        return super().__getattribute__(name)

    def _raw_endpoint(self) -> str:
        return self.__dict__["endpoint"]

    def get_base_url(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> str:
        """The URL for one attempt, or the bare endpoint when neither id is given.

        Raises:
            ValueError: only one of the two ids was given, or one is not a string.
        """
        endpoint = self._raw_endpoint()
        if rollout_id is None and attempt_id is None:
            return endpoint
        if not (isinstance(rollout_id, str) and isinstance(attempt_id, str)):
            raise ValueError("rollout_id and attempt_id must both be strings, or both be None")
        base = endpoint.removesuffix("/")
        versioned = base.endswith("/v1")
        base = f"{base.removesuffix('/v1')}/rollout/{rollout_id}/attempt/{attempt_id}"
        return f"{base}/v1" if versioned else base

    def with_attempted_rollout(self, rollout: AttemptedRollout | Rollout) -> LLM:
        """A plain :class:`LLM` whose endpoint belongs to the rollout's current attempt."""
        attempt_id = rollout.attempt.attempt_id if isinstance(rollout, AttemptedRollout) else None
        return LLM(
            endpoint=self.get_base_url(rollout.rollout_id, attempt_id),
            model=self.model,
            api_key=self.api_key,
            sampling_parameters=self.sampling_parameters,
        )


class PromptTemplate(Resource):
    """A prompt with holes."""

    resource_type: Literal["prompt_template"] = "prompt_template"
    template: str
    engine: Literal["jinja", "f-string", "poml"]

    def format(self, **kwargs: Any) -> str:
        """Fill the holes.

        Raises:
            NotImplementedError: the engine is not ``f-string`` (as in agent-lightning 0.3).
        """
        if self.engine != "f-string":
            raise NotImplementedError(f"Formatting {self.engine} templates is not supported")
        return self.template.format(**kwargs)


ResourceUnion = Annotated[LLM | ProxyLLM | PromptTemplate, Field(discriminator="resource_type")]
NamedResources = dict[str, ResourceUnion]


class ResourcesUpdate(BaseModel):
    """One version of a named bundle of resources. Times are seconds since the epoch."""

    resources_id: Identifier
    create_time: float
    update_time: float
    version: int
    """1 when created, one more at each update."""

    resources: NamedResources
