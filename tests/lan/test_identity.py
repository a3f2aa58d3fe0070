"""The host name on the link: stable, one for each port, never the system's."""

import re
import threading
from pathlib import Path

from pocketserver.lan import identity


def test_the_host_name_is_made_once_for_a_home_folder(tmp_path: Path) -> None:
    first = identity.load(tmp_path, 8080)

    assert re.fullmatch(r"pocket-[0-9a-f]{8}\.local\.", first.host_name)
    assert identity.load(tmp_path, 8080) == first
    assert [file.name for file in tmp_path.iterdir()] == ["lan-identity"]


def test_two_servers_of_one_home_folder_have_different_host_names(tmp_path: Path) -> None:
    assert identity.load(tmp_path, 8080) != identity.load(tmp_path, 8081)


def test_two_home_folders_have_different_host_names(tmp_path: Path) -> None:
    assert identity.load(tmp_path / "a", 8080) != identity.load(tmp_path / "b", 8080)


def test_servers_that_start_together_agree(tmp_path: Path) -> None:
    found: set[identity.Identity] = set()
    threads = [threading.Thread(target=lambda: found.add(identity.load(tmp_path, 1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 1


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "lan-identity").write_bytes(b"\xff\x00nonsense")

    assert identity.load(tmp_path, 1) == identity.load(tmp_path, 1)


def test_a_renamed_identity_differs(tmp_path: Path) -> None:
    first = identity.load(tmp_path, 1)
    assert first.renamed() != first
