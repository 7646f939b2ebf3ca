"""Graphs condensed to statements: those that fit a task by SciPy in tasks, larger ones by GraphFrames."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from untold.graph.condensation import condense_batches
from untold.graph.distributed import Components, Condensation, CondensationError
from untold.graph.distributed import Condensed as Condensed
from untold.jobs.run.folders import Workspace
from untold.jobs.run.session import graphframes_jar, is_connect, nullable
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError
from untold.udfs.storage import StoragePath

# The newest build for Spark 4 and Scala 2.13 that is known; the session asks Maven for it only where settings say so
COORDINATE = "io.graphframes:graphframes-spark4_2.13:0.12.2"
# What graphframes-py calls first: the class loader knows it exactly where the jar is on the class path
ENTRY_CLASS = "org.graphframes.GraphFramePythonAPI"
# Each iteration but the first finds components; those it leaves are contracted and asked for again
STRONG_ITERATIONS = 3
# How the JVM and py4j name a class or method that is not there, or is there in another shape: a jar for another Spark
LINKAGE = ("ClassNotFoundException", "NoClassDefFoundError", "NoSuchMethodError", "does not exist in the JVM")
MISMATCH = (*LINKAGE, "IncompatibleClassChangeError", "AbstractMethodError", "does not exist")
# Spark records this property of a thread with each RDD that the thread creates
CALL_SITE = "callSite.short"


class GraphFramesError(UserError):
    """GraphFrames is needed and cannot be used, or its answer was refused. The message says why."""


@dataclass
class GraphFramesComponents:
    """Weak and strong components by GraphFrames, whose JVM part must be on the session's class path.

    `checkpoints` is a folder for its use: its weak components break their lineage there. `_found` is the last result.
    `_mark` is the call site of each RDD that the library creates: `release` removes only these from memory, because a
    local checkpoint of the run, or a cached frame of the user, cannot be restored. Raises GraphFramesError where the
    jar is missing or does not match.
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
        """Weak components: id, component."""
        from graphframes import GraphFrame

        # With its default algorithm: randomized_contraction names a function that Spark 4.3 does not find, and graphx
        # with its default iterations stops early (9 components instead of 1 on a path of 40 nodes)
        return self._ask(lambda: GraphFrame(vertices, edges).connectedComponents())

    def strong(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        """Strong components or parts of them, since it stops after few iterations: id, component."""
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
        """The answer, held until `release`; errors of linkage become GraphFramesError."""
        context = self.spark.sparkContext
        before = context.getLocalProperty(CALL_SITE)
        context.setLocalProperty(CALL_SITE, self._mark)
        try:
            self._found = ask()
        except Py4JError as error:
            sign = next((sign for sign in MISMATCH if sign in str(error)), None)
            if sign is None:
                raise
            raise GraphFramesError(_describe_mismatch(self.spark, sign)) from error
        finally:
            context.setLocalProperty(CALL_SITE, before)  # type: ignore[arg-type]
        return self._found


def check_graphframes(spark: SparkSession, settings: Settings) -> None:
    """Raises GraphFramesError where the settings send every graph to GraphFrames and its jar is missing."""
    if settings.graph.method == "graphframes":
        _require_jar(spark, settings)


def _require_jar(spark: SparkSession, settings: Settings) -> None:
    """Raises GraphFramesError where the session's class loader does not know GraphFrames.

    The driver's thread is asked, and not the JVM's system loader, which knows nothing of `spark.jars.packages`.
    """
    if is_connect(spark):
        raise GraphFramesError(
            f"GraphFrames is needed (graph.method {settings.graph.method}, graph.max_edges_in_task "
            f"{settings.graph.max_edges_in_task}) and does not work over Spark Connect; set graph.method local, "
            "or give untold.Session a session that is not remote"
        )
    try:
        loader = spark.sparkContext._jvm.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
        loader.loadClass(ENTRY_CLASS)
    except Py4JError as error:
        raise GraphFramesError(_describe_missing(settings)) from error


def _remedy() -> str:
    """The ways in which a jar gets onto the class path; closed networks need the last one."""
    return (
        f"give {COORDINATE} by the setting spark.conf.spark.jars.packages={COORDINATE}, "
        "or name its downloaded jar by graph.jar or UNTOLD_GRAPHFRAMES_JAR"
    )


def _describe_missing(settings: Settings) -> str:
    """Why GraphFrames is needed and that its jar is missing: also where a setting names a file that is not there."""
    jar = graphframes_jar(settings)
    gone = f" ({jar} is not a file)" if jar and (path := StoragePath(jar).local) and not os.path.isfile(path) else ""
    return (
        f"GraphFrames is needed (graph.method {settings.graph.method}, graph.max_edges_in_task "
        f"{settings.graph.max_edges_in_task}) and its jar is not on Spark's class path{gone}; {_remedy()}"
    )


def _describe_mismatch(spark: SparkSession, sign: str) -> str:
    """That the jar is for another Spark or another graphframes-py, with both versions and the JVM's word for it."""
    return (
        f"the GraphFrames jar does not match Spark {spark.version} and graphframes-py {version('graphframes-py')} "
        f"({sign}); {_remedy()}"
    )


@dataclass(frozen=True)
class Condenser:
    """Condenses graphs by `graph.method`: in one task each up to `graph.max_edges_in_task` edges, else by GraphFrames.

    `workspace` is for its results and steps. `components` stands in for GraphFrames, in tests where there is no jar.

    The default of a million edges is what a task can hold: four million edges with ids of 32 characters, collected into
    one row, broke a heap of 1 GB.
    """

    settings: Settings
    workspace: Workspace
    components: Components | None = None

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """The classes and counts of graphs, a row a node and a row a graph, kept in the workspace.

        nodes: graph string, node long or string (its order is that of first appearance), context, response boolean,
        frequency long; a graph has at least one. edges: graph, source, target, judged boolean; not judged are pairs
        that only widen the bounds. Raises GraphFramesError where it is needed and cannot be used, ValueError for edges
        to what is no node of their graph. docs/methods.md, section 5.
        """
        kept = self.workspace
        if self.settings.graph.method == "local":
            return _condense_local(kept, nodes, edges)
        # In a folder of their own, which goes as soon as the results are kept outside it
        steps = kept.within("condensation")
        try:
            edges = steps.keep(edges, "edges")
            large = steps.keep(self._find_large(nodes, edges), "large-graphs")
            if not steps.count(large):
                return _condense_local(kept, nodes, edges)
            # Kept only from here on: most runs have no large graph and read their nodes once
            nodes = steps.keep(nodes, "nodes")
            apart = [frame.join(large, on="graph", how="left_semi") for frame in (nodes, edges)]
            rest = [frame.join(large, on="graph", how="left_anti") for frame in (nodes, edges)]
            whole = _union(self._condense_large(steps, *apart), _condense_local(steps, *rest))
            return Condensed(kept.keep(whole.classes, "classes"), kept.keep(whole.counts, "counts"))
        finally:
            steps.remove()

    def _find_large(self, nodes: DataFrame, edges: DataFrame) -> DataFrame:
        """The graphs that are not condensed in one task: column graph.

        All of them under graph.method graphframes; else those with more edges than fit, counted with unjudged ones.
        """
        if self.settings.graph.method == "graphframes":
            return nodes.select("graph").distinct()
        sizes = edges.groupBy("graph").agg(F.count("*").alias("size"))
        return sizes.where(F.col("size") > self.settings.graph.max_edges_in_task).select("graph")

    def _condense_large(self, steps: Workspace, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """What no task holds, by GraphFrames. A condensation that verification refuses is an error, never a result."""
        checkpoints = f"{steps.folder}/checkpoints"
        components = self.components or GraphFramesComponents(steps.spark, self.settings, checkpoints)
        try:
            return Condensation(components, steps, self.settings.graph.max_edges_in_task).condense(nodes, edges)
        except CondensationError as error:
            remedy = "raise graph.max_edges_in_task, so that one task condenses the graph"
            raise GraphFramesError(f"the result of GraphFrames failed its check ({error}); {remedy}") from error


def _condense_local(steps: Workspace, nodes: DataFrame, edges: DataFrame) -> Condensed:
    """All graphs by SciPy, a batch of Arrow at a time, in the columns of `untold.graph.distributed.Condensed`.

    Built-ins group and `mapInArrow` computes: 20,000 groups took 0.8 s so, and 5.6 s with one `applyInArrow` a group.
    """
    schema = _condensed_schema(nodes.schema["node"].dataType)
    condensed = steps.keep(_group(nodes, edges).mapInArrow(condense_batches, schema), "condensed")
    rows = condensed.select("graph", F.explode("classes").alias("class"))
    return Condensed(rows.select("graph", "class.*"), condensed.select("graph", "covered", "uncovered", "low", "high"))


def _union(first: Condensed, second: Condensed) -> Condensed:
    """The rows of both. A graph is in one of them alone, so that no row stands twice."""
    return Condensed(first.classes.unionByName(second.classes), first.counts.unionByName(second.counts))


def _group(nodes: DataFrame, edges: DataFrame) -> DataFrame:
    """graph, nodes sorted, edges: a row a graph, as `condense_batches` reads them."""
    # Sorted by node, the first field: ties for a statement's text go to what appeared first, whatever the partitioning
    members = F.array_sort(F.collect_list(F.struct("node", "context", "response", "frequency")))
    pairs = F.collect_list(F.struct("source", "target", "judged"))
    grouped_nodes = nodes.groupBy("graph").agg(members.alias("nodes"))
    grouped_edges = edges.groupBy("graph").agg(pairs.alias("edges"))
    # Left: a graph without edges has statements too; its edges are null
    return grouped_nodes.join(grouped_edges, on="graph", how="left").select("graph", "nodes", "edges")


def _condensed_schema(node: T.DataType) -> T.StructType:
    """The row that `condense_batches` gives: graph, classes array<struct>, covered, uncovered long, low, high double.

    node: the type of the nodes, long for graphs of samples and string for those of `untold condense`.
    """
    member = T.StructType().add("node", nullable(node)).add("statement", nullable(node))
    for name in ("representative", "covered", "in_basis"):
        member = member.add(name, T.BooleanType())
    schema = T.StructType().add("graph", T.StringType()).add("classes", T.ArrayType(member))
    schema = schema.add("covered", T.LongType()).add("uncovered", T.LongType())
    return schema.add("low", T.DoubleType()).add("high", T.DoubleType())
