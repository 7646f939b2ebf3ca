"""The endpoints of a meta-evaluation: asked by the study itself, and what the runs of metrics with them cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from untold.jobs.metrics import METRICS
from untold.jobs.run import manifest
from untold.jobs.run.outcome import FAILED_TOO_MANY
from untold.jobs.run.progress import Display
from untold.jobs.run.terminal import amount
from untold.jobs.study.claims_study import LabelledClaims, verify_claims
from untold.jobs.study.meta_evaluation import MetaEvaluationOutcome, MetaEvaluationRequest, StudyEndpoint
from untold.jobs.study.report import Cost
from untold.jobs.study.study_stages import StageAsker


def verify_endpoints(request: MetaEvaluationRequest, claims: LabelledClaims, display: Display) -> MetaEvaluationOutcome:
    """Has each endpoint verify the claims, until one ends early; too many failures do not stop the others."""
    code = 0
    for endpoint in request.endpoints:
        display.note(f"model {endpoint.model}")
        told = verify_claims(claims, asker(request, endpoint, display), request.runs[endpoint.model])
        if told.exit_code not in (0, FAILED_TOO_MANY):
            return MetaEvaluationOutcome(told.exit_code, message=told.message)
        if told.without_evidence:
            have = amount(told.without_evidence, "claim has", "claims have")
            display.note(f"{have} no evidence: not supported, unasked")
        code = max(code, told.exit_code)
    return MetaEvaluationOutcome(code)


def asker(request: MetaEvaluationRequest, endpoint: StudyEndpoint, display: Display) -> StageAsker:
    """What asks a stage of an endpoint, beside the runs."""
    return StageAsker(
        endpoint.settings,
        endpoint.embedded,
        request.output,
        display,
        wait=request.wait,
        retry_failed=request.retry_failed,
        command=request.command,
    )


def all_costs(request: MetaEvaluationRequest) -> dict[str, dict[str, Cost]]:
    """By model and metric what a sample cost; nothing where scores were given."""
    return {endpoint.model: _costs(request, endpoint) for endpoint in request.endpoints}


def _costs(request: MetaEvaluationRequest, endpoint: StudyEndpoint) -> dict[str, Cost]:
    """By metric what its stages cost a sample over all starts; a stage that metrics share counts for each of them."""
    run = manifest.read_manifest(request.runs[endpoint.model])
    assert run is not None
    assert request.metrics is not None
    usage = [row for start in run["starts"] for row in start["usage"]]
    costs = {}
    for metric in request.metrics:
        stages = METRICS[metric].stages(endpoint.settings)
        costs[metric] = _cost([row for row in usage if row["stage"] in stages], run["counts"]["samples"])
    return costs


def _cost(usage: Sequence[Mapping[str, Any]], samples: int) -> Cost:
    """Calls, tokens and cost a sample; a cost is the sum of what is known, None where nothing is."""
    calls = sum(row["calls"] for row in usage)
    tokens = sum(row["prompt_tokens"] + row["completion_tokens"] for row in usage)
    known = [row["cost"] for row in usage if row["cost"] is not None]
    estimated = any(row["tokens_estimated"] for row in usage)
    return Cost(calls / samples, tokens / samples, sum(known) / samples if known else None, estimated)
