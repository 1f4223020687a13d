"""Whom root works for, as the environment and the command line name them."""

from __future__ import annotations

import pytest

from rocekit.machine.rights import calling_user, named_user

#: The last user is no user: setuid(2) with it changes nothing, and root would stay root.
NO_IDS = ["4294967295", "4294967296", "9" * 5000, "²", "-1", "1e3", " 7", ""]


@pytest.mark.parametrize("text", NO_IDS)
def test_a_number_that_is_no_users_is_nobody_who_called_sudo(text: str) -> None:
    assert calling_user({"SUDO_UID": text, "SUDO_GID": "7"}) is None


@pytest.mark.parametrize("text", NO_IDS)
def test_a_group_that_is_none_leaves_the_users_own(text: str) -> None:
    user = calling_user({"SUDO_UID": "3999999999", "SUDO_GID": text})
    assert user is not None
    assert (user.uid, user.gid, user.groups) == (3999999999, 3999999999, (3999999999,))


@pytest.mark.parametrize("text", NO_IDS)
def test_no_user_has_such_a_number(text: str) -> None:
    with pytest.raises(KeyError):
        named_user(text)


def test_sudo_names_the_user_and_the_group() -> None:
    user = calling_user({"SUDO_UID": "3999999998", "SUDO_GID": "4294967294"})
    assert user is not None
    assert (user.uid, user.gid) == (3999999998, 4294967294)
    assert calling_user({"SUDO_UID": "0", "SUDO_GID": "0"}) is None
