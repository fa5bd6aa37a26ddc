# Everything runs in .venv, which `make install` makes and renews when what it depends on has changed.
PYTHON ?= python3
BIN := .venv/bin
PIP := HEADRACE_KERNELS=apart $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALLED := .venv/.installed
KERNELS := $(shell sed -nE 's/^    "(src.*[.]py)",$$/\1/p' setup.py)

# Where bytecode is not kept, every process that a test starts compiles the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo cluster-demo serve test lint docs bench bench-queues bench-replicas bench-framework simulate java go node browser etcd spark cluster long clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

install: $(INSTALLED)  ## .venv with everything in it, kernels compiled where there is a C compiler

# pip waits for the network and unpacks with one core; meanwhile the kernels are compiled.
$(INSTALLED): pyproject.toml setup.py $(KERNELS)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) 'setuptools>=77' 'cython>=3.1'
	$(BIN)/python setup.py -q build_ext --inplace & compiling=$$!; \
	$(PIP) -e '.[dev]'; installed=$$?; \
	wait $$compiling && exit $$installed
	@touch $@

demo: install  ## a broker and four scenarios through it, every number checked
	$(BIN)/headrace demo

cluster-demo: install  ## three nodes and an etcd: leaders killed, handed over and stopped, every number checked
	$(BIN)/python -m bench.peers.etcd
	$(BIN)/python -m examples.cluster_demo

serve: install  ## a broker on 127.0.0.1:9092 with its data under ./data
	$(BIN)/headrace serve --data ./data

# A failure counts the first time. Much of the tests' time is waiting, so there are more workers than the two cores that they are meant for.
test: install  ## the tests
	$(BIN)/python -m pytest -n 4 --dist worksteal

lint: install  ## style, types, and the contracts between the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: install  ## renew the tables in docs/ that come from the code
	$(BIN)/python docs/renew.py

bench: install bench-queues  ## all benchmarks, beside a real Apache Kafka where there is Java
	$(BIN)/python -m bench

bench-queues: install  ## queues, beside RabbitMQ where it is installed and nsqd where NSQD=path gives one
	$(BIN)/python -m bench.queues

bench-replicas: install  ## three replicas, beside a Kafka of three nodes where there is Java
	$(BIN)/python -m bench.peers.etcd
	$(BIN)/python -m bench.replicas

bench-framework: install  ## the framework, beside confluent-kafka and FastStream
	$(PIP) -e ".[bench]"
	$(BIN)/python -m bench.framework

simulate: install  ## seeded runs of the simulator, with power cuts and faults
	$(BIN)/python -m simulation

java: install  ## the tests with Kafka's own Java tools
	$(BIN)/python -m pytest -m java

go: install  ## the tests with franz-go, Sarama and go-nsq
	$(BIN)/python -m pytest -m go

etcd: install  ## the tests with a real etcd, which is found (ETCD=path), or installed for them alone
	$(BIN)/python -m bench.peers.etcd
	$(BIN)/python -m pytest -m "etcd and not long"

spark: install  ## the tests of the pipeline with a real Spark (Java 17); cluster, Connect and examples are with `make long`
	$(PIP) -e ".[pipeline,lake,connect]"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "spark and not long"

cluster: install  ## a Spark cluster of two workers on loopback, until Ctrl-C
	$(PIP) -e ".[pipeline]"
	$(BIN)/python -m bench.peers.spark

browser: install  ## the tests of the console in a real Chromium, which also make the pictures in docs/images
	$(PIP) -e ".[browser]"
	$(BIN)/python -m bench.peers.axe
	$(BIN)/python -m pytest -m browser

node: install  ## the tests with kafkajs and nsqjs
	$(BIN)/python -m pytest -m node

# Nothing is tried twice here: what fails once in many kills is what the campaigns look for.
long: install  ## the campaigns that take minutes each; LONGER=5 makes them five times as long
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long --hypothesis-profile default
	$(BIN)/python -m pytest -n 2 --dist worksteal -m hypothesis --hypothesis-profile default

clean:  ## drop what was built; never ./data
	rm -rf .venv build dist src/*.egg-info $(shell find src -name "*.so")
