# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI's continuous batching, asked by lines of JSON on stdin: what bench/peers/serving.py runs.

Usage: genai.py MODEL KV_TYPE GROUP THREADS KV_TOKENS SEQUENCES
GROUP: activations a scale where they are rounded to 8 bits; 0: they aren't, as in workers.
In: {"prompts": [[token ids]], "tokens": N}. Out: {"ready": true}, then {"seconds": S} for each line.
"""

import json
import sys
import time

import numpy
import openvino
import openvino_genai

BLOCK_TOKENS = 32  # Of the CPU plugin.


def main():
    model, kv, group, threads, kv_tokens, sequences = sys.argv[1:]
    schedule = openvino_genai.SchedulerConfig()
    schedule.num_kv_blocks = int(kv_tokens) // BLOCK_TOKENS
    schedule.max_num_seqs = int(sequences)
    schedule.max_num_batched_tokens = 512
    schedule.dynamic_split_fuse = True
    schedule.enable_prefix_caching = False
    hints = {
        "INFERENCE_NUM_THREADS": int(threads),
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": kv,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": int(group),
    }
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, schedule, "CPU", hints)
    print(json.dumps({"ready": True}), flush=True)
    number = 0
    for line in sys.stdin:
        asked = json.loads(line)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = asked["tokens"]
        config.ignore_eos = True
        config.do_sample = False
        tensors = [openvino.Tensor(numpy.array([ids], dtype=numpy.int64)) for ids in asked["prompts"]]
        begin = time.perf_counter()
        handles = []
        for tensor in tensors:
            handles.append(pipeline.add_request(number, tensor, config))
            number += 1
        while pipeline.has_non_finished_requests():
            pipeline.step()
        seconds = time.perf_counter() - begin
        for handle in handles:
            made = len(handle.read_all()[0].generated_ids)
            assert made == asked["tokens"], (made, asked["tokens"])
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
