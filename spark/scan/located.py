"""Reads with placement: each partition asks to be read on a host that has the broker's store.

The source's own reader plans and reads. Spark 4.3 gives Python sources no say in where a partition goes, but an RDD may
name hosts for each of its elements, so the plan travels as one: a row a partition.

    plan on the driver ─▶ RDD of one row a partition, with hosts ─▶ mapInArrow ─▶ record batches

Rules: (1) hosts are a wish: where none of their executors is free soon, any other reads, over TCP if it must;
(2) every action reads the same plan, as with `load()`.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import psutil

from shmq.shm.descriptors import above_standard
from shmq.spark.options import is_remote, parse_options
from shmq.spark.scan.reader import ShmqReader
from shmq.spark.schema import default_columns, projected, refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def located_read(
    spark: SparkSession, *, schema: str | None = None, hosts: Sequence[str] | None = None, **options: Any
) -> DataFrame:
    """Return what `spark.read.format("shmq")` would load, read by preference on the broker's host.

    Args:
        schema: columns wanted, as Spark DDL; None takes the view's default.
        hosts: names or addresses as Spark knows its executors by; None takes those executors that are on this host,
            if the broker is.
        options: those of the source.

    Raises:
        ShmqError: what `load()` would raise.
        UsageError: this is Spark Connect.
    """
    from pyspark.sql.types import StructType

    parsed = parse_options({name: str(value) for name, value in options.items()})
    ddl = schema or default_columns(parsed.view, include_properties=parsed.include_properties)
    wanted = StructType.fromDDL(ddl)
    assert isinstance(wanted, StructType)  # DDL of columns has no other type
    reader = ShmqReader(parsed, tuple(projected(parsed.view, wanted)))
    context = getattr(spark, "_sc", None)
    if context is None:
        raise refused("located_read needs a classic session: Spark Connect has no RDDs", "use spark.read")
    if hosts is None:
        hosts = [] if is_remote(parsed.store) else executors_here(context)
    plan = _located(spark, context, [pickle.dumps((reader, part)) for part in reader.partitions()], hosts)
    return _mapped(plan, wanted)


def executors_here(context: Any) -> list[str]:
    """Return the names Spark knows those executors by that run on this host."""
    known = {info.host() for info in context._jsc.sc().statusTracker().getExecutorInfos()}
    mine = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    return sorted(name for name in known if _addresses(name) & mine)


@above_standard
def _addresses(name: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None)}
    except OSError:
        return set()


def _located(spark: SparkSession, context: Any, plans: Sequence[bytes], hosts: Sequence[str]) -> DataFrame:
    """A data frame with one row and one partition for each plan, at these hosts."""
    from pyspark.sql import DataFrame

    jvm, gateway = context._jvm, context._gateway
    elements = jvm.java.util.ArrayList()
    for plan in plans:
        values = gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = bytearray(plan)
        row = jvm.org.apache.spark.sql.RowFactory.create(values)
        elements.add(jvm.scala.Tuple2(row, _sequence(jvm, hosts)))
    sequence = jvm.scala.jdk.javaapi.CollectionConverters.asScala(elements).toSeq()
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("org.apache.spark.sql.Row"))
    rdd = context._jsc.sc().makeRDD(sequence, tag) if plans else context._jsc.emptyRDD().rdd()
    schema = jvm.org.apache.spark.sql.types.StructType.fromDDL("plan binary")
    session: Any = spark
    return DataFrame(session._jsparkSession.createDataFrame(rdd.toJavaRDD(), schema), spark)


def _sequence(jvm: Any, texts: Sequence[str]) -> Any:
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(jvm.java.util.ArrayList(list(texts))).toSeq()


def _read(batches: Iterator[Any]) -> Iterator[Any]:
    """In an executor: read what each row says."""
    for batch in batches:
        for plan in batch.column(0):
            reader, part = pickle.loads(plan.as_py())  # written by our own driver, like every closure of Spark's
            yield from reader.read(part)


def _mapped(plan: DataFrame, wanted: StructType) -> DataFrame:
    """`plan.mapInArrow(_read, wanted)`, which asks for pandas although nothing of it is used."""
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    read: Any = UserDefinedFunction(_read, wanted, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    mapped = plan._jdf.mapInArrow(read(plan["plan"])._jc, False, None)
    return DataFrame(mapped, plan.sparkSession)
