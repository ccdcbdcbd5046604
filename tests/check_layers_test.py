"""tools/check_layers.py on small trees: each rule refuses its violation and accepts its opposite."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import check_layers  # noqa: E402


class CheckLayersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for header in (
            "base/error.h", "quant/quant.h", "quant/code.h", "tokenizer/tokenizer.h",
            "backend/backend.h", "backend/params/linear.h", "backend/registry.h", "backend/cpu/cpu.h",
            "backend/cpu/gemv.h", "backend/reference/reference.h", "kv_cache/kv_cache.h",
            "kv_cache/ring.h", "sampler/sampler.h", "model/model.h", "engine/engine.h",
        ):
            self.write(f"src/{header}", "#pragma once\n")
        self.write("tests/support.h", "#pragma once\n")

    def write(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def complaints(self):
        return check_layers.House(self.root).check()

    def assert_accepts(self, path, *headers):
        self.write(path, "".join(f'#include "{header}"\n' for header in headers))
        self.assertEqual(self.complaints(), [])

    def assert_refuses(self, path, header, why):
        """`header` is included on line 3 of `path`; that is the one complaint."""
        self.write(path, f'// A comment.\n#include <vector>\n#include "{header}"\n')
        complaints = self.complaints()
        self.assertEqual(len(complaints), 1, complaints)
        self.assertTrue(complaints[0].startswith(f"{path}:3: "), complaints[0])
        self.assertIn(why, complaints[0])

    def test_own_folder_and_doors_below_are_accepted(self):
        self.assert_accepts("src/model/model.cc", "model/model.h", "kv_cache/kv_cache.h",
                            "backend/params/linear.h", "backend/backend.h", "base/error.h",
                            "nlohmann/json.hpp")

    def test_higher_floor_is_refused(self):
        self.assert_refuses("src/kv_cache/ring.cc", "model/model.h", "model/ is not below kv_cache/")

    def test_same_floor_is_refused(self):
        self.assert_refuses("src/sampler/x.cc", "kv_cache/kv_cache.h", "not below")

    def test_inner_header_of_another_folder_is_refused(self):
        self.assert_refuses("src/model/model.cc", "kv_cache/ring.h", "not a door of kv_cache/")

    def test_angle_brackets_hide_nothing(self):
        self.write("src/base/x.cc", "#  include <quant/quant.h>\n")
        self.assertEqual(len(self.complaints()), 1)

    def test_relative_path_hides_nothing(self):
        self.assert_refuses("src/quant/x.cc", "../model/model.h", "not below")

    def test_missing_file_is_refused(self):
        self.assert_refuses("src/model/model.cc", "quant/qunat.h", "no such file")

    def test_room_sees_the_backends_doors(self):
        self.assert_accepts("src/backend/cpu/cpu.cc", "backend/cpu/gemv.h", "backend/backend.h",
                            "backend/params/linear.h", "quant/quant.h", "base/error.h")

    def test_room_sees_no_other_header_of_the_backend(self):
        self.assert_refuses("src/backend/cpu/cpu.cc", "backend/registry.h", "not a door")

    def test_room_does_not_see_another_room(self):
        self.assert_refuses("src/backend/cpu/cpu.cc", "backend/reference/reference.h", "room")

    def test_room_does_not_see_the_tokenizer(self):
        self.assert_refuses("src/backend/cpu/cpu.cc", "tokenizer/tokenizer.h", "sees only")

    def test_only_the_registry_and_backend_tests_name_rooms(self):
        self.assert_accepts("src/backend/registry.cc", "backend/cpu/cpu.h")
        self.assert_accepts("src/backend/agreement_test.cc", "backend/reference/reference.h")
        self.assert_refuses("src/backend/other.cc", "backend/cpu/cpu.h", "room")

    def test_higher_floor_does_not_name_rooms(self):
        self.assert_refuses("src/model/model.cc", "backend/cpu/cpu.h", "room")
        self.assert_refuses("src/model/model.cc", "backend/cpu/gemv.h", "not a door")

    def test_only_net_sees_boost(self):
        self.write("src/net/server.cc", "#include <boost/asio.hpp>\n")
        self.assertEqual(self.complaints(), [])
        self.assert_refuses("src/model/model.cc", "boost/asio.hpp", "only src/net/ sees Boost")

    def test_tests_follow_their_floor_and_see_test_support(self):
        self.assert_accepts("src/quant/code_test.cc", "quant/code.h", "tests/support.h")
        self.assert_refuses("src/quant/code_test.cc", "model/model.h", "not below")

    def test_a_rooms_test_support_sees_that_of_all(self):
        self.write("src/quant/test_support.h", '#pragma once\n#include "tests/support.h"\n')
        self.assert_accepts("src/quant/code_test.cc", "quant/test_support.h")

    def test_code_does_not_see_test_support(self):
        self.assert_refuses("src/quant/code.cc", "tests/support.h", "not below")

    def test_crossing_tests_see_every_door(self):
        self.assert_accepts("tests/x_test.cc", "engine/engine.h", "model/model.h", "tests/support.h")
        self.assert_refuses("tests/x_test.cc", "kv_cache/ring.h", "not a door")

    def test_what_the_cli_sees(self):
        self.assert_accepts("apps/cli/main.cc", "engine/engine.h", "tokenizer/tokenizer.h")
        self.assert_refuses("apps/cli/main.cc", "model/model.h", "sees only")

    def test_what_examples_see(self):
        self.assert_accepts("examples/hello.cc", "quantspec/engine.h")
        self.assert_refuses("examples/hello.cc", "engine/engine.h", "sees only <quantspec/...>")

    def test_only_the_cli_shows_the_measuring_instruments(self):
        self.write("src/bench/bench.h", "#pragma once\n")
        self.assert_accepts("apps/cli/bench.cc", "bench/bench.h")
        self.assert_refuses("examples/hello.cc", "bench/bench.h", "sees only")

    def test_apps_do_not_see_each_other(self):
        self.write("apps/server/server.h", "#pragma once\n")
        self.assert_refuses("apps/cli/main.cc", "../server/server.h", "not below")

    def test_unknown_folder_is_refused(self):
        self.write("src/utils/utils.cc", "")
        self.assertIn("without a floor", self.complaints()[0])

    def test_long_files_are_refused(self):
        self.write("src/model/model.cc", "\n" * 600)
        self.write("tools/x.py", "\n" * 600)
        self.assertEqual(self.complaints(), [])
        self.write("src/model/model.cc", "\n" * 601)
        self.write("tools/x.py", "\n" * 601)
        self.assertEqual([line.split(": ")[0] for line in self.complaints()],
                         ["src/model/model.cc:601", "tools/x.py:601"])

    def test_classes_of_many_virtual_functions_are_refused(self):
        def declare(count):
            lines = "".join(f"  virtual void f{i}() = 0;\n" for i in range(count))
            self.write("src/model/x.h", "#pragma once\nclass Y;\nclass X : public Y,\n          public Z {\n"
                       " public:\n  virtual ~X() = default;\n  struct In {\n    virtual void g();\n  };\n"
                       f"{lines}}};\nclass Small {{\n  virtual void f();\n}};\n")
        declare(check_layers.MAX_VIRTUALS)
        self.assertEqual(self.complaints(), [])
        declare(check_layers.MAX_VIRTUALS + 1)
        self.assertEqual([line.split(" virtual")[0] for line in self.complaints()],
                         ["src/model/x.h:3: X declares 13"])

    def test_doors_that_bring_many_headers_are_refused(self):
        most = check_layers.MAX_CLOSURE
        for i in range(most):
            self.write(f"src/base/h{i}.h", f'#pragma once\n#include "base/h{i + 1}.h"\n')
        self.write(f"src/base/h{most}.h", "#pragma once\n")
        self.write("src/model/inner.h", '#pragma once\n#include "base/error.h"\n#include "base/h0.h"\n')
        self.write("src/model/model.h", '#pragma once\n#include "base/h1.h"\n')
        self.assertEqual([line for line in self.complaints() if "base/" not in line], [])
        self.write("src/model/model.h", '#pragma once\n#include "base/h0.h"\n')
        self.assertEqual([line.split(",")[0] for line in self.complaints() if "base/" not in line],
                         [f"src/model/model.h:1: brings {most + 1} headers along"])

    def test_the_public_door_brings_fewer_headers(self):
        most = check_layers.MAX_CLOSURE_OF["src/engine/engine.h"]
        self.assertLess(most, check_layers.MAX_CLOSURE)
        for i in range(most):
            self.write(f"src/base/h{i}.h", f'#pragma once\n#include "base/h{i + 1}.h"\n')
        self.write(f"src/base/h{most}.h", "#pragma once\n")
        self.write("src/engine/engine.h", '#pragma once\n#include "base/h1.h"\n')
        self.write("src/model/model.h", '#pragma once\n#include "base/h0.h"\n')
        self.assertEqual(self.complaints(), [])
        self.write("src/engine/engine.h", '#pragma once\n#include "base/h0.h"\n')
        self.assertEqual([line.split(",")[0] for line in self.complaints()],
                         [f"src/engine/engine.h:1: brings {most + 1} headers along"])

    def test_narrow_headers_have_few_readers(self):
        self.write("src/backend/params/pass.h", "#pragma once\n")
        self.write("src/model/on.h", '#pragma once\n#include "backend/params/pass.h"\n')
        for i in range(10):
            self.write(f"src/model/x{i}.cc", '#include "model/on.h"\n' if i < 2 else "")
        self.assertEqual(self.complaints(), [])
        self.write("src/model/x2.cc", '#include "model/on.h"\n')
        self.assertEqual([line.split(",")[0] for line in self.complaints()],
                         ["src/backend/params/pass.h:1: 3 of 10 files see it"])

    def test_few_files_see_what_a_caller_can_set(self):
        self.write("src/kv_cache/fields.h", "#pragma once\n")
        self.write("src/kv_cache/kv_cache.h", '#pragma once\n#include "kv_cache/fields.h"\n')
        for i in range(20):  # another folder's fields.h is a door
            self.write(f"src/model/x{i}.cc", '#include "kv_cache/fields.h"\n' if i < 2 else "")
        self.assertEqual(self.complaints(), [])
        self.write("src/model/x2.cc", '#include "kv_cache/kv_cache.h"\n')
        self.assertEqual([line.split(",")[0] for line in self.complaints()],
                         ["src/kv_cache/fields.h:1: 3 of 20 files see it"])

    def test_a_field_is_declared_in_fields_h_and_has_a_flag(self):
        field = 'inline constexpr Field kTrace{"trace"};\n'
        self.write("src/model/fields.h", f"#pragma once\n{field}")
        self.assertEqual(self.complaints(), ["src/model/fields.h:2: kTrace has no row in apps/cli/flags.cc"])
        self.write("apps/cli/flags.cc", '{field::kTraces, "--traces"},\n')
        self.assertEqual(len(self.complaints()), 1)
        self.write("apps/cli/flags.cc", '{field::kTrace, "--trace"},\n')
        self.assertEqual(self.complaints(), [])
        self.write("src/model/model.h", f"#pragma once\n{field}")
        self.assertEqual(self.complaints(), ["src/model/model.h:2: declares a Field, kTrace; fields.h of "
                                             "the folder does"])

    def test_second_meanings_of_words_are_refused(self):
        for path, refused, accepted in (
            ("src/kv_cache/x.cc", "// a block of tokens", "// a page, blocked"),
            ("src/kv_cache/y.cc", "int residual_length;", "int ring_length;"),
            ("src/model/z.cc", "constexpr int kBlocks = 1;", "rng.block(1); kBlocking"),
            ("src/sampler/x.cc", "constexpr int kChunk = 256;", "constexpr int kBand = 256;"),
            ("src/backend/cpu/x.cc", "int chunks = 2;", "prefill_chunk();  // a chunk of a prompt"),
            ("src/backend/cuda/linear_x.cu", "int slice = 0;", "int segment = 0;"),
            ("src/rivals/gathered_kv.cc", "constexpr int kChunk = 8;", "chunk_read();  // of a prompt"),
            ("src/kv_cache/kv_access.cc", "// chunks of 8", "int chunk = 0;  // segments of 8"),
            ("src/backend/cpu/y.cc", "struct Lane {", "struct RoundLane { int lane; };"),
            ("src/engine/x.cc", "int gamma = 4;", "int draft_len = 4;  // γ"),
        ):
            with self.subTest(path):
                self.write(path, accepted + "\n")
                self.assertEqual(self.complaints(), [])
                self.write(path, f"\n{refused}\n")
                complaints = self.complaints()
                self.assertEqual(len(complaints), 1, complaints)
                self.assertTrue(complaints[0].startswith(f"{path}:2: says '"), complaints)
                self.write(path, "")

    def test_flags_in_texts_of_the_library_are_refused(self):
        flag = 'const char* a = "a larger --ctx-size works";'
        self.write("src/model/x.cc", f"// A comment.\n{flag}\n")
        self.write("src/model/y.h", '#pragma once\nauto b = f(1\'000, \'\\\'\', \'"\', "\\"--temp", \'a\');\n')
        complaints = self.complaints()
        self.assertEqual([line.split(";")[0] for line in complaints],
                         ["src/model/x.cc:2: names --ctx-size", "src/model/y.h:2: names --temp"])
        self.write("src/model/x.cc", '// as "--ctx-size" says\nint a = f("a", --b, "c");  // "--d"\n')
        self.write("src/model/y.h", '#pragma once\nauto b = f("-- a", "a -- b", \'"\', --i, \'"\');\n')
        self.write("src/model/x_test.cc", flag)
        self.write("apps/cli/x.cc", flag)
        self.assertEqual(self.complaints(), [])

    def test_pragma_once_is_required_in_headers(self):
        self.write("src/model/x.h", "// #pragma once\n")
        self.assertEqual(self.complaints(), ["src/model/x.h:1: a header without #pragma once"])

    def test_headers_that_include_each_other_are_refused(self):
        self.write("src/model/a.h", '#pragma once\n#include "model/b.h"\n')
        self.write("src/model/b.h", '#pragma once\n#include "model/model.h"\n')
        self.assertEqual(self.complaints(), [])
        self.write("src/model/b.h", '#pragma once\n#include "a.h"\n')
        complaints = self.complaints()
        self.assertEqual(len(complaints), 1, complaints)
        self.assertIn("src/model/a.h -> src/model/b.h -> src/model/a.h", complaints[0])


if __name__ == "__main__":
    unittest.main()
