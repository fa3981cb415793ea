"""Makes a SparkSession: with a Java that was found, quiet, quick to answer, and knowing the format "braidmq".

    from braidmq.pipeline.session import session

    spark = session("report")
    spark.read.format("braidmq").option("path", "data").load().groupBy("topic").count().show()

The master is this machine by default. For any other one (`spark://…`, `yarn`, `k8s://…`) the package ships itself to
the executors; they need Python with pyarrow, numpy and msgspec, and no BraidMQ. With `sc://…`, or with SPARK_REMOTE and
no master, the session is one of Spark Connect.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from braidmq.pipeline import package
from braidmq.pipeline.errors import MissingExtra, PipelineError
from braidmq.pipeline.launch import java, worker_python
from braidmq.pipeline.launch.class_archive import ClassArchive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[*]"
LOOPBACK: Final = "127.0.0.1"
LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
NEEDED: Final = ("pyspark", "pyarrow", "pandas")
NEEDED_BY_CONNECT: Final = ("grpc", "google.protobuf")

QUERY_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # State that is larger than memory, and checkpoints that hold what has changed, not all of it.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A micro-batch writes small files before and after its work: one rename each, and no second file with a checksum.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""What any session may set for its own queries."""
QUIET_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_PARTITIONS: Final = "8"
"""Of a shuffle on one machine, where Spark's 200 cost more than they give."""
ARROW_JVM: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Arrow in Java would check, for each value that it reads, that the memory is still there and the index within it.
Arrow in Python has made these vectors, and Spark asks first whether a value is null: this saves a sixth of reading."""
STACK_JVM: Final = "-Xss8m"
"""The stack of each thread, as far as it needs it. When a query is stopped during a batch, Spark searches what Python
says to it, which may be long, with an expression that takes a piece of the stack for each character."""
QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_PARTITIONS: Final = "2"


def session(
    name: str, master: str | None = None, *, quick: bool = False, own_group: bool = True, **settings: str
) -> SparkSession:
    """The SparkSession of this process: made if there is none yet.

    `quick` is for short work such as tests, and for streams of small batches, such as processors: Java compiles far
    less, so that it starts sooner and leaves the machine to the rest; it is slower at what takes long. With `own_group`
    Java does not get the signals to the group of this process. `settings` are Spark's own
    (`**{"spark.executor.memory": "2g"}`) and go over the defaults here. A PipelineError says why there is none.
    """
    remote = _remote(master)
    _need(NEEDED if remote is None else (*NEEDED, *NEEDED_BY_CONNECT), connect=remote is not None)
    if remote is not None:
        spark = _connect(remote, settings)
    else:
        spark = _running(master) or _start(name, master or MASTER, quick, own_group, settings)
    register(spark)
    return spark


@contextmanager
def short_session(name: str, master: str | None = None) -> Iterator[SparkSession]:
    """A quick session, whose Java has ended when it is left. The first on a machine writes the archive of Spark's
    classes, with which all later sessions start in half the time."""
    if _remote(master) is not None or _has_context():
        made = session(name, master, quick=True)
        try:
            yield made
        finally:
            made.stop()
        return
    _need(NEEDED, connect=False)
    archive = ClassArchive(java.find(), "session", writes=True)
    made = _start(name, master or MASTER, True, True, {}, archive)
    try:
        yield made
    finally:
        made.stop()
        archive.end_java()


def register(spark: SparkSession) -> None:
    """Makes the format "braidmq" known to a session that came from elsewhere (a notebook, `spark-submit`)."""
    from braidmq.pipeline.source.format import BraidSource

    spark.dataSource.register(BraidSource)


def is_local(master: str) -> bool:
    """Whether its tasks run in processes that this one has started."""
    return master == "local" or master.startswith("local[")


def is_connect(master: str | None) -> bool:
    """Whether `session` gives one of Spark Connect: then logs are where its server sees them."""
    return _remote(master) is not None


def _remote(master: str | None) -> str | None:
    """The address of a Spark Connect server, if that is what is asked for."""
    if master is not None and master.startswith("sc://"):
        return master
    return (os.environ.get("SPARK_REMOTE") or None) if master is None else None


def _need(names: tuple[str, ...], *, connect: bool) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if connect and name in NEEDED_BY_CONNECT:
                hint = 'Spark Connect needs more: install it with `pip install "pyspark[connect]"`'
                raise MissingExtra(error.name, hint) from None
            raise MissingExtra(error.name) from None


def _has_context() -> bool:
    try:
        from pyspark import SparkContext
    except ImportError:
        return False
    return SparkContext._active_spark_context is not None


def _running(master: str | None) -> SparkSession | None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        return None
    if master is not None and context.master != master:
        raise PipelineError(
            f"this process has a Spark session on {context.master} already, so it cannot have one on {master}",
            "End that one with `spark.stop()`, or use a process of its own",
        )
    return SparkSession.builder.getOrCreate()


def _start(
    name: str,
    master: str,
    quick: bool,
    own_group: bool,
    settings: dict[str, str],
    archive: ClassArchive | None = None,
) -> SparkSession:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from braidmq.pipeline.launch.gateway import start_context

    found = java.find()
    set_environment(master, found, worker_python.executable())
    if archive is None:
        archive = ClassArchive(found, "session", writes=False)
    conf = SparkConf().setAppName(name).setMaster(master)
    conf.setAll([*(defaults(master, quick, archive.options) | settings).items()])
    with starting(master):
        start_context(conf, own_group=own_group)
        spark = SparkSession.builder.getOrCreate()
    if is_local(master):
        _skip_local_checksums(spark)
    else:
        spark.sparkContext.addPyFile(str(package.zipped()))
    return spark


def set_environment(master: str, found: java.Java, executable: str) -> None:
    """What Spark looks for before it starts: Java, and on this machine a Python and an address."""
    os.environ.pop("SPARK_REMOTE", None)  # a master was asked for: Spark refuses to be told both
    os.environ["JAVA_HOME"] = str(found.home)
    if on_this_machine(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        os.environ.setdefault("PYSPARK_PYTHON", executable)


@contextmanager
def starting(master: str) -> Iterator[None]:
    """Around the start of Spark: what goes wrong becomes a PipelineError."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise PipelineError(f"Spark did not start: {error}", "`braidmq doctor --spark` looks for the cause") from error
    except Exception as error:  # what Java throws comes as one of many kinds
        raise PipelineError(
            f"Spark did not start on {master}: {_first_words(error)}", "Is that the address of a master that runs?"
        ) from error


def defaults(master: str, quick: bool = False, java_options: str = "") -> dict[str, str]:
    """What a session on `master` is set to where nothing else is said; `java_options` are for its Java besides."""
    found = QUERY_SETTINGS | QUIET_SETTINGS
    # A Unix socket between Java and its Python workers: a TCP connection a task is what costs in short batches.
    found["spark.python.unix.domain.socket.enabled"] = "true"
    options = [f'-Dlog4j2.configurationFile="{LOG_SETTINGS.as_uri()}"', ARROW_JVM, STACK_JVM]
    if on_this_machine(master):
        found |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.sql.shuffle.partitions": QUICK_PARTITIONS if quick else LOCAL_PARTITIONS,
        }
    if quick:
        options.append(QUICK_JVM)
    if java_options:
        options.append(java_options)
    found["spark.driver.extraJavaOptions"] = " ".join(options)
    return found


def on_this_machine(master: str) -> bool:
    """Whether no task can run elsewhere: then nothing needs to listen to other machines."""
    if is_local(master) or master.startswith("local-cluster["):
        return True
    host = urlsplit(master.partition(",")[0]).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _skip_local_checksums(spark: SparkSession) -> None:
    """Each small file of a checkpoint would get a `.crc` beside it, on a disk that has checksums of its own."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(hadoop).setWriteChecksum(False)


def _connect(remote: str, settings: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.builder.remote(remote).getOrCreate()
        for key, value in (QUERY_SETTINGS | settings).items():
            spark.conf.set(key, value)
        spark.addArtifacts(str(package.zipped()), pyfile=True)
    except Exception as error:  # gRPC and Spark each have their own
        raise PipelineError(
            f"there is no Spark Connect server to use at {remote}: {_first_words(error)}",
            "The address looks like sc://HOST:15002",
        ) from error
    return spark


def _first_words(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:500]
