"""Fence tokens have an order. Equality decides who holds one."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog.fence import FenceToken

small = st.integers(0, 3)
tokens = st.builds(
    FenceToken, small, small, st.sampled_from("ab"), st.just("test"), st.sampled_from([b"1", b"2"])
)


@given(tokens, tokens)
def test_order_is_by_generation_then_epoch(one: FenceToken, two: FenceToken) -> None:
    one_rank, two_rank = (one.deploy_generation, one.epoch), (two.deploy_generation, two.epoch)
    assert (one < two) == (one_rank < two_rank)
    assert (one > two) == (one_rank > two_rank)
    assert (one <= two) == (one < two or one == two)
    assert (one >= two) == (one > two or one == two)
    # Two holders of one rank: exactly none of the relations.
    if one_rank == two_rank:
        assert (one == two) == ((one.holder, one.nonce) == (two.holder, two.nonce))


@given(tokens, tokens)
def test_the_next_token_fences_the_durable_one(mine: FenceToken, durable: FenceToken) -> None:
    mine = FenceToken(max(mine.deploy_generation, durable.deploy_generation), 0, mine.holder, mine.purpose)
    assert mine.after(durable) > durable
    assert mine.after(None).epoch == 1


@given(tokens)
def test_a_token_comes_back_from_its_row(token: FenceToken) -> None:
    assert FenceToken.from_proto(token.to_proto()) == token


def test_each_open_has_a_nonce_of_its_own_that_messages_do_not_show() -> None:
    one, two = (FenceToken(0, 1, "holder", "test") for _ in range(2))
    assert one != two
    assert len(one.nonce) == 16
    assert repr(one.nonce) not in repr(one) + str(one)
    assert str(one) == "epoch 1 of generation 0 (holder, test)"


def test_a_message_takes_only_so_much_of_a_token_that_others_stored() -> None:
    token = FenceToken.from_proto(FenceToken(1, 2, "h" * 2_000_000, "p" * 2_000_000).to_proto())
    assert len(token.holder) == 2_000_000
    assert token.by == f"{'h' * 499}…, {'p' * 499}…"
    assert str(token) == f"epoch 2 of generation 1 ({token.by})"
