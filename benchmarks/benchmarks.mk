# Targets of the Makefile of the repository, which includes this file: they run from there, with its variables.

# SIGKILLs of `make soak-kills`, and what is killed.
KILLS := 1000
FLOWS := run,publish,search,auto,qat,finetune,embed,predict,tune

# Folder with the data sets and checkpoints of `make bench-auto`.
SHARED := ../shared

.PHONY: bench bench-here bench-auto bench-olive fuzz soak soak-kills

# The benchmarks of the documents.
bench: install
	$(BIN)/python benchmarks/foundation.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/calibration.py --placement tensorrt
	$(BIN)/pip install --quiet -c constraints.txt -e ".[bench]"
	$(BIN)/python benchmarks/calibration.py --peers 16
	$(BIN)/python benchmarks/norms.py
	$(BIN)/pip install --quiet -c constraints.txt -e ".[browser]"
	$(BIN)/python benchmarks/page.py
	$(BIN)/python benchmarks/speed.py

# What 8 bits are worth on this machine, in about five minutes.
bench-here: install
	$(BIN)/python benchmarks/speed_here.py

# OLIVE has a checkout of Olive for each release; MODEL and DATA take the place of the models and data of its configs. SEARCH: part of the names of the
# configs whose plans are searched, by default all.
bench-olive: install
	$(BIN)/python benchmarks/olive_configs.py $(OLIVE) --model $(MODEL) --data $(DATA)/mrpc \
	  --texts $(DATA)/xnli/dev-en.tsv --search "$(SEARCH)" --page docs/reference/olive-configs.md

# What `octobert auto` chooses, compared with an exhaustive grid.
bench-auto: install
	for case in mrpc sst2 stsb squad bert-base; do \
	  for seed in 0 1 2; do $(BIN)/python benchmarks/choosing.py regret --case $$case --seed $$seed --shared $(SHARED) || exit 1; done; \
	done
	$(BIN)/python benchmarks/choosing.py simulated --isa AVX2 --shared $(SHARED)
	$(BIN)/python benchmarks/choosing.py outliers --shared $(SHARED)
	$(BIN)/python benchmarks/choosing.py kills --shared $(SHARED)
	$(BIN)/python benchmarks/choosing.py table

# Damaged files of every kind, 10,000 of each at the most in five minutes each.
fuzz: install
	$(BIN)/python benchmarks/fuzz.py --page docs/evidence/robustness.md
	$(BIN)/python -m pytest tests/properties --hypothesis-profile=many

soak: install
	$(BIN)/python benchmarks/soak.py --minutes 60
	$(BIN)/python benchmarks/soak.py --texts 1000000 --target openvino-cpu
	$(BIN)/python benchmarks/soak_disk.py
	$(BIN)/python benchmarks/soak_disk.py --kind names
	$(BIN)/python benchmarks/soak_environments.py
	$(BIN)/python benchmarks/soak_bytes.py

soak-kills: install
	$(BIN)/python benchmarks/soak_kills.py --kills $(KILLS) --flows $(FLOWS)
