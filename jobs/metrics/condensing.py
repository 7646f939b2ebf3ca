"""Condense graphs to statements with SciPy in tasks, and graphs that are too large for a task with GraphFrames."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.graph.condensation import CONDENSED, condense_batches
from untold.graph.distributed import Components, Condensation, CondensationError
from untold.graph.distributed import Condensed as Condensed
from untold.jobs.run.folders import Workspace
from untold.jobs.run.session import graphframes_jar, is_connect
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError
from untold.udfs.storage import StoragePath

# The newest known build for Spark 4 and Scala 2.13. The session downloads it only if a setting names it
COORDINATE = "io.graphframes:graphframes-spark4_2.13:0.12.2"
# The first class that graphframes-py needs. The class loader finds it if the jar is on the class path
ENTRY_CLASS = "org.graphframes.GraphFramePythonAPI"
# Each iteration but the first finds components; those it leaves are contracted and asked for again
STRONG_ITERATIONS = 3
# Errors of the JVM and py4j for a missing class or method, and for a jar of another Spark
LINKAGE = ("ClassNotFoundException", "NoClassDefFoundError", "NoSuchMethodError", "does not exist in the JVM")
MISMATCH = (*LINKAGE, "IncompatibleClassChangeError", "AbstractMethodError", "does not exist")
# Spark records this property of a thread with each RDD that the thread creates
CALL_SITE = "callSite.short"


class GraphFramesError(UserError):
    """GraphFrames is necessary and not available, or its result failed a check."""


@dataclass
class GraphFramesComponents:
    """Compute weak and strong components with GraphFrames. Its jar must be on the class path of the session.

    `checkpoints` is the folder in which weak components break their lineage. `_found` is the last result. `_mark` is
    the call site of each RDD that the library creates. `release` removes only these RDDs from memory, because a local
    checkpoint of the run, or a cached frame of the user, cannot be restored. Raises GraphFramesError if the jar is
    missing or does not match.
    """

    spark: SparkSession
    settings: Settings
    checkpoints: str
    _found: DataFrame | None = None
    _mark: str = field(default_factory=lambda: f"GraphFrames {uuid4().hex}")

    def __post_init__(self) -> None:
        _require_jar(self.spark, self.settings)
        self.spark.sparkContext.setCheckpointDir(self.checkpoints)

    def weak(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        """Return the weak components: id, component."""
        from graphframes import GraphFrame

        # With its default algorithm: randomized_contraction names a function that Spark 4.3 does not find, and graphx
        # with its default iterations stops early (9 components instead of 1 on a path of 40 nodes)
        return self._ask(lambda: GraphFrame(vertices, edges).connectedComponents())

    def strong(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        """Return strong components or parts of them: id, component. The library stops after `STRONG_ITERATIONS`."""
        from graphframes import GraphFrame

        return self._ask(lambda: GraphFrame(vertices, edges).stronglyConnectedComponents(STRONG_ITERATIONS))

    def release(self) -> None:
        """Remove the last result from memory, and all RDDs that the library left there.

        One call of strong components leaves about 30 RDDs of GraphX.
        """
        if self._found is not None:
            self._found.unpersist()
        self._found = None
        # PySpark has no public method for either
        for kept in dict(self.spark.sparkContext._jsc.getPersistentRDDs()).values():
            if kept.rdd().getCreationSite() == self._mark:
                kept.unpersist()

    def _ask(self, ask: Callable[[], DataFrame]) -> DataFrame:
        """Return the result, and keep it until `release`. Errors of linkage become GraphFramesError."""
        context = self.spark.sparkContext
        before = context.getLocalProperty(CALL_SITE)
        context.setLocalProperty(CALL_SITE, self._mark)
        try:
            self._found = ask()
        except Py4JError as error:
            sign = next((sign for sign in MISMATCH if sign in str(error)), None)
            if sign is None:
                raise
            raise GraphFramesError(
                f"the GraphFrames jar does not match Spark {self.spark.version} and graphframes-py "
                f"{version('graphframes-py')} ({sign}); {_remedy()}"
            ) from error
        finally:
            context.setLocalProperty(CALL_SITE, before)  # type: ignore[arg-type]
        return self._found


def check_graphframes(spark: SparkSession, settings: Settings) -> None:
    """Raise GraphFramesError if the settings send every graph to GraphFrames and its jar is missing."""
    if settings.graph.method == "graphframes":
        _require_jar(spark, settings)


def _require_jar(spark: SparkSession, settings: Settings) -> None:
    """Raise GraphFramesError if the class loader of the session does not find GraphFrames.

    This uses the loader of the driver's thread, because the system loader of the JVM ignores `spark.jars.packages`.
    """
    own = settings.graph
    needed = f"GraphFrames is needed (graph.method {own.method}, graph.max_edges_in_task {own.max_edges_in_task})"
    if is_connect(spark):
        raise GraphFramesError(
            f"{needed} and does not work over Spark Connect; set graph.method local, or give untold.Session a session "
            "that is not remote"
        )
    try:
        loader = spark.sparkContext._jvm.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
        loader.loadClass(ENTRY_CLASS)
    except Py4JError as error:
        jar = graphframes_jar(settings)
        is_lost = jar and (path := StoragePath(jar).local) and not os.path.isfile(path)
        lost = f" ({jar} is not a file)" if is_lost else ""
        raise GraphFramesError(f"{needed} and its jar is not on Spark's class path{lost}; {_remedy()}") from error


def _remedy() -> str:
    """Return the ways to add the jar to the class path. Closed networks need the last one."""
    return (
        f"give {COORDINATE} by the setting spark.conf.spark.jars.packages={COORDINATE}, "
        "or name its downloaded jar by graph.jar or UNTOLD_GRAPHFRAMES_JAR"
    )


@dataclass(frozen=True)
class Condenser:
    """Condense graphs by `graph.method`: in one task up to `graph.max_edges_in_task` edges, otherwise with GraphFrames.

    `workspace` keeps results and steps. `components` replaces GraphFrames in tests without a jar.

    A task can condense the default of a million edges. Four million edges with ids of 32 characters, collected into
    one row, exceeded a heap of 1 GB.
    """

    settings: Settings
    workspace: Workspace
    components: Components | None = None

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """Return the classes (a row per node) and counts (a row per graph) of the graphs, kept in the workspace.

        nodes: graph string, node long or string (in the order of first appearance), context boolean, response boolean,
        frequency long. A graph has at least one node. edges: graph, source, target, judged boolean. Unjudged edges only
        widen the bounds. Raises GraphFramesError if it is necessary and not available, and ValueError for an edge to a
        node outside its graph. docs/methods.md, section 5.
        """
        kept = self.workspace
        if self.settings.graph.method == "local":
            return _condense_local(kept, nodes, edges)
        # The steps have their own folder, which is removed when the results are kept
        steps = kept.within("condensation")
        try:
            edges = steps.keep(edges, "edges")
            large = steps.keep(self._find_large(nodes, edges), "large-graphs")
            if not steps.count(large):
                return _condense_local(kept, nodes, edges)
            # Most runs have no large graph and read their nodes once, so the nodes are kept only here
            nodes = steps.keep(nodes, "nodes")
            apart = [frame.join(large, on="graph", how="left_semi") for frame in (nodes, edges)]
            rest = [frame.join(large, on="graph", how="left_anti") for frame in (nodes, edges)]
            # They have no common graph
            one, other = self._condense_large(steps, *apart), _condense_local(steps, *rest)
            classes, counts = one.classes.unionByName(other.classes), one.counts.unionByName(other.counts)
            return Condensed(kept.keep(classes, "classes"), kept.keep(counts, "counts"))
        finally:
            steps.remove()

    def _find_large(self, nodes: DataFrame, edges: DataFrame) -> DataFrame:
        """Return the column graph: the graphs that do not fit a task.

        With graph.method graphframes, these are all graphs. Otherwise, unjudged edges count too.
        """
        if self.settings.graph.method == "graphframes":
            return nodes.select("graph").distinct()
        sizes = edges.groupBy("graph").agg(F.count("*").alias("size"))
        return sizes.where(F.col("size") > self.settings.graph.max_edges_in_task).select("graph")

    def _condense_large(self, steps: Workspace, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """Condense large graphs with GraphFrames. A condensation that fails its check is an error and not a result."""
        checkpoints = f"{steps.folder}/checkpoints"
        components = self.components or GraphFramesComponents(steps.spark, self.settings, checkpoints)
        try:
            return Condensation(components, steps, self.settings.graph.max_edges_in_task).condense(nodes, edges)
        except CondensationError as error:
            remedy = "raise graph.max_edges_in_task, so that one task condenses the graph"
            raise GraphFramesError(f"the result of GraphFrames failed its check ({error}); {remedy}") from error


def _condense_local(steps: Workspace, nodes: DataFrame, edges: DataFrame) -> Condensed:
    """Condense all graphs with SciPy in Arrow batches, to the columns of `untold.graph.distributed.Condensed`.

    Spark groups the rows, and `mapInArrow` computes. 20,000 groups took 0.8 s, and 5.6 s with `applyInArrow` per group.
    """
    schema = CONDENSED.format(nodes.schema["node"].dataType.simpleString())
    condensed = steps.keep(_group(nodes, edges).mapInArrow(condense_batches, schema), "condensed")
    rows = condensed.select("graph", F.explode("classes").alias("class"))
    return Condensed(rows.select("graph", "class.*"), condensed.select("graph", "covered", "uncovered", "low", "high"))


def _group(nodes: DataFrame, edges: DataFrame) -> DataFrame:
    """Return graph, sorted nodes and edges: a row per graph for `condense_batches`."""
    # Sorted by node, so that the first node wins a tie for the text of a statement in all partitions
    members = F.array_sort(F.collect_list(F.struct("node", "context", "response", "frequency")))
    pairs = F.collect_list(F.struct("source", "target", "judged"))
    grouped_nodes = nodes.groupBy("graph").agg(members.alias("nodes"))
    grouped_edges = edges.groupBy("graph").agg(pairs.alias("edges"))
    # A left join, because a graph without edges has statements too
    return grouped_nodes.join(grouped_edges, on="graph", how="left").select("graph", "nodes", "edges")
