"""Settings of how file systems, Spark and Ray are opened."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from untold.jobs.settings.fields import AN_ADDRESS, Address, PathText, Section, StorageOptions, Text
from untold.udfs.schemes import environment_of


class LakehouseSettings(Section):
    """Where `--output-format delta` and `iceberg` have the tables of all dates."""

    path: PathText | None = Field(default=None, description="Folder of Delta tables, path or URI: PATH/scores, ...")
    catalog: Text | None = Field(
        default=None, description="Name of an Iceberg catalog that .pyiceberg.yaml or PYICEBERG_CATALOG__* configures"
    )
    namespace: Text | None = Field(default=None, description="Namespace of the Iceberg tables")


class StorageSettings(Section):
    """How file systems are opened. None of it changes a result, so that it may differ from start to start."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset({"packages", "options"})

    endpoint: Address | None = Field(
        default=None,
        description="Address of an S3-compatible store; null is AWS, or what AWS_ENDPOINT_URL says",
        json_schema_extra=AN_ADDRESS,
    )
    region: Text | None = Field(default=None, description="Region of S3; null is that of AWS_REGION, or of the bucket")
    path_style: bool | None = Field(
        default=None, description="Whether S3 has the bucket in the path; null says yes where there is an endpoint"
    )
    anonymous: bool = Field(default=False, description="Whether s3 and gs are read without credentials")
    packages: Literal["auto"] | list[Text] = Field(
        default="auto",
        description="Maven coordinates of what Spark needs for object stores; auto fits the Spark in use, [] is none",
    )
    options: StorageOptions = Field(
        default_factory=dict,
        description="pyarrow's options of s3, gs and abfss; NAME_env names the variable that holds NAME",
    )

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which other processes open file systems so."""
        return environment_of(self.model_dump(exclude_defaults=True, exclude={"packages"}))


class SparkSettings(Section):
    """The Spark session. None of it changes a result, so that it may differ from start to start."""

    master: Text | None = Field(default="local[*]", description="Spark master; null leaves it to the launcher")
    conf: dict[str, str] = Field(
        default_factory=dict, description="Spark configuration over conf/spark-defaults.conf, by Spark's own names"
    )
    class_archive: bool = Field(
        default=True,
        description="Whether small jobs leave Spark's classes in the user's cache (190 MB), for all later starts",
    )


class RaySettings(Section):
    """The Ray cluster. Limits hold within one: two local ones share nothing (docs/contract.md, "Limits")."""

    address: Text | None = Field(default=None, description="Address of a Ray cluster; null starts a local one")
    runtime_env: dict[str, Any] = Field(
        default_factory=dict, description="Ray's runtime_env of the actors, such as `untold package` prints it"
    )
