# SPDX-License-Identifier: Apache-2.0
"""isthmus kv on files: each command says what is so, by text, JSON and exit code."""

import json
import subprocess

import pytest
from conftest import MODEL, PROGRAM


def kv(*arguments):
    return subprocess.run(
        [str(PROGRAM), "kv", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(name="sample")
def made_sample(tmp_path):
    file = tmp_path / "a.kvs"
    made = kv("sample", "vllm:flash_nhd", file, "--tokens", "10..310", "--heads", 4, "--ranks", "2x1")
    assert made.returncode == 0, made.stderr
    assert "2 ranks" in made.stdout and "root " in made.stdout
    return file


def root_of(file):
    return json.loads(kv("verify", file, "--json").stdout)["root"]


def test_a_sample_is_verified_and_inspected(sample):
    verified = kv("verify", sample)
    assert verified.returncode == 0 and "whole; " in verified.stdout
    text = kv("inspect", sample).stdout
    assert "tokens [10, 310)" in text and "300 tokens" in text and "identity.architecture" in text
    found = json.loads(kv("inspect", sample, "--json").stdout)
    assert found["tokens"] == [10, 310] and found["chain"] is None
    assert found["descriptor"]["groups.0.geometry.layers"] == "0-1"


def test_the_same_seed_gives_the_same_root_in_any_storage_of_the_format(sample, tmp_path):
    other = tmp_path / "b.kvs"
    options = ["--tokens", "10..310", "--heads", 4, "--block", 16, "--ranks", "8x2"]
    made = kv("sample", "sglang:page", other, *options)
    assert made.returncode == 0, made.stderr
    assert root_of(other) == root_of(sample)


def test_a_converted_file_is_the_same_state_and_back_again(sample, tmp_path):
    there, back = tmp_path / "b.kvs", tmp_path / "c.kvs"
    made = kv("convert", sample, "vllm:cpu_amx", there, "--ranks", "3x2", "--policy", "lossless", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["root"] == root_of(sample)
    same = kv("diff", sample, there)
    assert same.returncode == 0 and same.stdout.startswith("the same state")
    assert kv("convert", there, "vllm:flash_nhd", back, "--ranks", "2x1").returncode == 0
    first, second = sample.read_bytes(), back.read_bytes()
    assert first == second


def test_a_conversion_is_the_same_on_any_number_of_threads_and_says_what_it_clamped(sample, tmp_path):
    files = [tmp_path / f"{threads}.kvs" for threads in (1, 2, 5)]
    for file, threads in zip(files, (1, 2, 5), strict=True):
        made = kv("convert", sample, "openvino:u8", file, "--threads", threads, "--json")
        assert made.returncode == 0, made.stderr
        assert (json.loads(made.stdout)["saturated"], json.loads(made.stdout)["non_finite"]) == (0, 0)
    assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()
    made = kv("convert", sample, "openvino:u8", files[0], "--non-finite", "replace")
    assert "values clamped: 0, not finite and replaced: 0" in made.stdout


def test_a_compressed_file_is_smaller_and_the_same_state(tmp_path):
    plain, packed, back = (tmp_path / f"{name}.kvs" for name in "abc")
    assert kv("sample", "llamacpp:f32", plain).returncode == 0
    assert kv("convert", plain, "llamacpp:f32", packed, "--compress", "zstd").returncode == 0
    assert packed.stat().st_size < plain.stat().st_size
    assert root_of(packed) == root_of(plain)
    assert json.loads(kv("inspect", packed, "--json").stdout)["compressed"]
    assert kv("convert", packed, "llamacpp:f32", back).returncode == 0
    assert back.read_bytes() == plain.read_bytes()


def test_a_lossy_conversion_needs_its_policy_and_is_measured(sample, tmp_path):
    to = tmp_path / "b.kvs"
    refused = kv("convert", sample, "openvino:u8", to, "--policy", "lossless")
    assert refused.returncode == 5 and "lossless" in refused.stderr and not to.exists()
    assert kv("convert", sample, "openvino:u8", to).returncode == 0
    differs = kv("diff", sample, to, "--json")
    assert differs.returncode == 7
    found = json.loads(differs.stdout)
    assert not found["same_numbers"] and [one["component"] for one in found["numbers"]] == ["k", "v"]
    assert 0 < found["numbers"][0]["rms"] < 0.02


def test_static_scales_come_from_the_command_or_from_the_files_own_codes(sample, tmp_path):
    fp8, moved, again = (tmp_path / f"{name}.kvs" for name in ("fp8", "moved", "again"))
    missing = kv("convert", sample, "vllm:flash_nhd_fp8", fp8)
    assert missing.returncode == 3 and "--static-scale k=0.02,v=0.03" in missing.stderr
    made = kv("convert", sample, "vllm:flash_nhd_fp8", fp8, "--static-scale", "k=0.5,v=0.0625:0.125")
    assert made.returncode == 0, made.stderr
    lines = json.loads(kv("inspect", fp8, "--json").stdout)["descriptor"]
    assert lines["groups.0.static.k"] == "0x3f000000"
    assert lines["groups.0.static.v"] == "0x3d800000,0x3e000000"
    # Other layouts of the same codes have the same scales; others need them said.
    assert kv("convert", fp8, "vllm:paged_x_fp8", moved, "--policy", "lossless").returncode == 0
    assert root_of(moved) == root_of(fp8)
    fnuz = ["convert", fp8, "vllm:flash_nhd_fp8_fnuz", again, "--policy", "lossless"]
    assert kv(*fnuz).returncode == 3
    assert kv(*fnuz, "--static-scale", "k=0.5,v=0.0625:0.125").returncode == 5
    assert kv(*fnuz, "--static-scale", "k=1,v=0.125:0.25").returncode == 0
    assert kv("diff", fp8, again, "--json").returncode == 7
    back = json.loads(kv("diff", fp8, again, "--json").stdout)["numbers"]
    assert [one["max"] for one in back] == [0, 0]


@pytest.mark.parametrize(
    "scales", ["k", "k=", "=1", "k=0", "k=-1", "k=inf", "k=nan", "k=1,", "k=1,k=2", "k=1:", "k=1x"]
)
def test_wrong_static_scales_are_said(scales, sample, tmp_path):
    made = kv("convert", sample, "vllm:flash_nhd_fp8", tmp_path / "b.kvs", "--static-scale", scales)
    assert made.returncode == 2 and "--static-scale" in made.stderr


def test_static_scales_that_nothing_stores_are_refused(sample, tmp_path):
    for storage, scales in (("openvino:u8", "k=1"), ("vllm:flash_nhd_fp8", "k=1,v=1,q=1")):
        made = kv("convert", sample, storage, tmp_path / "b.kvs", "--static-scale", scales)
        assert made.returncode == 3 and "stores no static scale of" in made.stderr
    wrong = kv("convert", sample, "vllm:flash_nhd_fp8", tmp_path / "b.kvs", "--static-scale", "k=1:2:3,v=1")
    assert wrong.returncode == 3 and "static" in wrong.stderr


def test_a_damaged_file_is_named_by_its_tile(sample, tmp_path):
    content = bytearray(sample.read_bytes())
    content[-5000] ^= 1
    bad = tmp_path / "bad.kvs"
    bad.write_bytes(content)
    found = kv("verify", bad)
    assert found.returncode == 7
    assert "layer 1, part v, head 3" in found.stderr and "digest differs" in found.stderr
    bad.write_bytes(sample.read_bytes()[:-1])
    found = kv("verify", bad, "--json")
    assert found.returncode == 7 and "size" in json.loads(found.stdout)["error"]
    assert kv("verify", tmp_path / "none.kvs").returncode == 3


def test_files_and_storages_are_explained(sample):
    text = kv("explain", sample, sample).stdout
    assert "direct" in text
    answer = json.loads(kv("explain", "llamacpp:f16", "openvino:f32", "--json").stdout)
    assert answer["verdict"] == "redistribute+convert" and answer["exact"]
    rejected = kv("explain", sample, "openvino:f32", "--json")
    assert rejected.returncode == 5 and json.loads(rejected.stdout)["rejects"]


def test_the_catalogue_is_data(tmp_path):
    everything = json.loads(kv("catalogue", "--json").stdout)
    assert len(everything) > 30 and all(one["source"] and one["layout"] for one in everything)
    one = kv("catalogue", "openvino:u8")
    assert one.returncode == 0 and "region K per layer" in one.stdout
    unknown = kv("catalogue", "openvino:u9")
    assert unknown.returncode == 3 and "openvino:u8" in unknown.stderr
    assert not list(tmp_path.iterdir())


COMMANDS = ["sample", "convert", "verify", "diff", "catalogue", "inspect", "explain"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command):
    helped = kv(command, "--help")
    assert helped.returncode == 0 and f"isthmus kv {command}" in helped.stdout


def test_wrong_values_are_said():
    assert kv("sample", "llamacpp:f16", "x.kvs", "--ranks", "two").returncode == 2
    assert kv("sample", "llamacpp:f16", "x.kvs", "--tokens", "9..9").returncode == 2


PROMPT = (
    "The old lighthouse keeper climbed the stairs every evening. He had done so for thirty years, in "
    "summer when the sea lay flat and in winter when it threw stones at the door. He knew each ship by "
    "her lamps, and each captain by the way he rounded the point. One night in November, when the wind "
    "had turned and the fog came in, he saw"
)


def live(command, file, engine, *arguments):
    options = ["--model", MODEL, "--engine", engine, "--prompt", PROMPT, "--generate", 12, "--json"]
    made = kv(command, file, *options, *arguments)
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


@pytest.mark.parametrize(
    ("engine", "layouts", "policy"),
    [
        # Through the plainest numbers too: they came out of this engine, so they go back in exactly.
        ("llamacpp:f16", ["vllm:paged_x", "openvino:f32", "llamacpp:f32_v_transposed"], "unqualified"),
        ("openvino:u8", ["openvino:u8"], "lossless"),
        ("openvino:f32", ["llamacpp:f32", "openvino:stateful_f32"], "lossless"),
    ],
)
def test_a_live_state_goes_on_after_every_layout_and_back(engine, layouts, policy, tmp_path):
    first = tmp_path / "first.kvs"
    alone = live("export", first, engine)
    assert len(alone["tokens"]) == 12 and alone["state_tokens"] > 64  # More than two blocks of 32.
    assert root_of(first) == alone["root"]
    assert live("import", first, engine)["tokens"] == alone["tokens"]
    for storage in layouts:
        there = tmp_path / "there.kvs"
        made = kv("convert", first, storage, there, "--ranks", "3x2", "--context", 2, "--run", 32)
        assert made.returncode == 0, made.stderr
        assert live("import", there, engine, "--policy", policy)["tokens"] == alone["tokens"], storage


def test_a_state_of_another_prompt_or_a_forbidden_conversion_is_refused(tmp_path):
    file = tmp_path / "a.kvs"
    live("export", file, "llamacpp:f16")
    other = ["--model", MODEL, "--prompt", "Another prompt altogether", "--engine", "llamacpp:f16"]
    refused = kv("import", file, *other)
    assert refused.returncode == 5 and "the state is of tokens" in refused.stderr
    lossy = kv("import", file, "--model", MODEL, "--prompt", PROMPT, "--engine", "openvino:u8")
    assert lossy.returncode == 5 and "the verdict rejects" in lossy.stderr
    bad = kv("import", file, "--model", MODEL, "--prompt", PROMPT, "--engine", "openvino:u9")
    assert bad.returncode == 2 and "no such KV type" in bad.stderr


def qualify(prefill, decode, *arguments):
    return kv("qualify", prefill, decode, "--model", MODEL, "--threads", 2, *arguments)


def test_a_pair_is_qualified_and_its_record_is_one_of_a_fleet(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('The isthmus is a narrow strip of land\n\n"def area(w, h):\\n    return"\n')
    record = tmp_path / "record.yaml"
    ran = qualify("llamacpp:f16", "openvino:u8", "--prompts", prompts, "--out", record, "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["covers"] and len(found["prompts"]) == 2 and record.read_text() == found["record"]
    assert 0 < found["pair_differs"]["kl"]["mean"] < found["engines_differ"]["kl"]["mean"]
    assert found["ratio"]["low"] <= found["ratio"]["mean"] <= found["ratio"]["high"] < 1.5
    assert 0.9 < found["pair_differs"]["agreement"]["mean"] <= 1
    (tmp_path / "fleet.key").write_text("00" * 32)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "fleet: f\nkey: file:fleet.key\nmodels: {m: {policy: bounded}}\nqualifications: [record.yaml]\n"
        "workers:\n"
        "  - {name: p, role: prefill, model: m, url: 'http://127.0.0.1:1', engine: llamacpp}\n"
        "  - {name: d, role: decode, model: m, url: 'http://127.0.0.1:2', engine: openvino}\n"
    )
    checked = subprocess.run(
        [str(PROGRAM), "fleet", "check", str(fleet)], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_engine_with_itself_differs_in_nothing():
    ran = qualify("llamacpp:f16", "llamacpp:f16", "--limit", 1)
    assert ran.returncode == 0, ran.stderr
    assert "KL, nats                        0 [0, 0]" in ran.stdout and "it may be used" in ran.stdout


def test_what_qualify_cannot_do_is_said(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('one is enough\n"two')
    ran = qualify("llamacpp:f16", "openvino:u8", "--prompts", prompts)
    assert ran.returncode == 3 and "line 2 begins with" in ran.stderr
    ran = qualify("llamacpp:f16", "openvino:u8", "--out", tmp_path / "none" / "record.yaml")
    assert ran.returncode == 3 and "can't be written" in ran.stderr
    ran = qualify("llamacpp:f16", "openvino:f8")
    assert ran.returncode == 2 and "no such KV type" in ran.stderr


def test_a_worker_of_a_file_that_is_not_in_its_lineage_does_not_start(tmp_path):
    (tmp_path / "fleet.key").write_text("00" * 32)
    fleet = tmp_path / "fleet.yaml"
    text = "fleet: f\nkey: file:fleet.key\nmodels:\n  m: {{lineage: [{}]}}\nworkers: []\n"
    worker = [str(PROGRAM), "worker", "--engine", "llamacpp", "--model", MODEL, "--fleet", str(fleet)]
    fleet.write_text(text.format("0" * 64))
    ran = subprocess.run(worker, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 3 and "isn't in its model's lineage" in ran.stderr
