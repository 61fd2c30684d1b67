"""What a job follows and what follows it, as lines for `headrace jobs show`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from uuid import UUID

from headrace.cli.output import clean
from headrace.model.gate import Needs
from headrace.operate.groups import GraphNode, WorkflowGraph

DEPTH: Final = 2
"""How far the graph is walked: to the jobs beside the job, across the gate of those that it follows together."""
MOST: Final = 20
"""Lines on each side."""

_NEEDS: Final = {Needs.DONE: "", Needs.ENDED: "  (until ended)", Needs.FAILED: "  (until dead or cancelled)"}


def lines(job: UUID, graph: WorkflowGraph) -> Iterator[str]:
    """The two sides of a job. Nothing, if it follows no job and none follows it."""
    nodes = {node.id: node for node in graph.nodes}
    before = [(edge.source, edge.target, edge.needs) for edge in graph.edges]
    after = [(edge.target, edge.source, edge.needs) for edge in graph.edges]
    yield from _side("follows", job, nodes, before)
    yield from _side("followed by", job, nodes, after)


def _side(
    title: str, job: UUID, nodes: Mapping[UUID, GraphNode], edges: Iterable[tuple[UUID, UUID, Needs | None]]
) -> Iterator[str]:
    """`edges`: (further away, nearer, needs)."""
    edges = list(edges)
    beside: dict[UUID, Needs | None] = {}
    for far, near, needs in edges:
        if near != job:
            continue
        if nodes[far].kind == "group" and nodes[far].label is None:
            # A gate without a label only joins jobs, so the jobs behind it are shown.
            beside |= {other: needs or further for other, gate, further in edges if gate == far}
        else:
            beside[far] = needs
    if not beside:
        return
    yield ""
    yield title
    for id, needs in list(beside.items())[:MOST]:
        yield f"    {_node(nodes[id])}{'' if needs is None else _NEEDS[needs]}"
    if len(beside) > MOST:
        yield f"    and {len(beside) - MOST:,} more: see GET /v1/jobs/{job}/workflow"


def _node(node: GraphNode) -> str:
    if node.kind == "job":
        return f"{node.state or '':<10} {clean(node.task or '')}  {node.id}"
    if node.kind == "event":
        name = f"event {clean(node.label)}" if node.label else "an event"
        return f"{node.state or '':<10} {name}  {node.id}"
    counts = f"{node.done:,} of {node.size:,} done" + (f", {node.dead:,} dead" if node.dead else "")
    return f"{node.state or '':<10} group {clean(node.label or '')}  {node.id}  {counts}"
