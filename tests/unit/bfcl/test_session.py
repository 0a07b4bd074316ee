import copy
import json

import pytest

from rolloutkit.errors import EnvironmentFailed, SetUpFailed
from rolloutkit.types import StopReason, ToolCall
from rolloutkit_bfcl.checker import check
from rolloutkit_bfcl.dataset import Entry, find_entry, load_category
from rolloutkit_bfcl.toolbox import open_toolboxes
from tests.unit.bfcl.play import calling, ground_truth, open_session, play, saying

FILE_SYSTEM_TASK = "multi_turn_base_1"
LATE_TOOL_TASK = "multi_turn_miss_func_0"

LS = ToolCall("ls", {}, call_id="call_1")


def _entry_with(category: str, class_name: str) -> Entry:
    entries = load_category(category).values()
    return next(entry for entry in entries if class_name in entry.involved_classes)


async def test_the_first_observation_asks_and_offers_the_official_documents() -> None:
    observation = await open_session(FILE_SYSTEM_TASK).reset()

    assert [message["role"] for message in observation.messages] == ["user"]
    assert observation.tools is not None
    assert len(observation.tools) == 18
    assert observation.tools[0]["parameters"]["type"] == "object"
    assert "The response field has the following schema" in observation.tools[0]["description"]
    assert not observation.tools_in_messages


async def test_compact_documents_are_one_line_a_function_in_the_system_message() -> None:
    observation = await open_session(FILE_SYSTEM_TASK, tool_documents="compact").reset()

    system, user = observation.messages
    assert system["role"] == "system"
    assert "\nls(a?: boolean): List the contents of the current directory\n" in system["content"]
    assert user["role"] == "user"
    assert observation.tools_in_messages
    assert observation.tools is not None
    assert len(observation.tools) == 18


async def test_a_system_prompt_can_be_given() -> None:
    session = open_session(FILE_SYSTEM_TASK, system_prompt="Use {functions} well.")

    observation = await session.reset()

    assert observation.messages[0]["content"].startswith("Use cat(file_name): Display")
    assert not observation.tools_in_messages


async def test_a_call_is_executed_and_answered_in_a_tool_message() -> None:
    session = open_session(FILE_SYSTEM_TASK)
    await session.reset()

    observation = await session.step(calling(LS))

    assert observation.messages == (
        {
            "role": "tool",
            "content": '{"current_directory_content": ["workspace"]}',
            "tool_call_id": "call_1",
            "name": "ls",
        },
    )
    assert not observation.done


async def test_calls_written_as_text_are_executed_and_answered_in_the_official_form() -> None:
    session = open_session(FILE_SYSTEM_TASK)
    await session.reset()

    observation = await session.step(saying("[ls(a=True), cd(folder='workspace')]"))

    (message,) = observation.messages
    assert message["role"] == "user"
    assert message["content"] == repr(
        [
            {
                "role": "tool",
                "name": "ls(a=True)",
                "content": '{"current_directory_content": ["workspace"]}',
            },
            {
                "role": "tool",
                "name": "cd(folder='workspace')",
                "content": '{"current_working_directory": "workspace"}',
            },
        ]
    )


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (ToolCall("rm_rf", {}), "name 'rm_rf' is not defined"),
        (ToolCall("_load_scenario", {"scenario": {}}), "name '_load_scenario' is not defined"),
        (ToolCall("os.system", {}), "name 'os' is not defined"),
        (
            ToolCall("ls", {"path": "/"}),
            "GorillaFileSystem.ls() got an unexpected keyword argument 'path'",
        ),
    ],
)
async def test_what_cannot_be_called_is_an_error_for_the_model(call: ToolCall, result: str) -> None:
    session = open_session(FILE_SYSTEM_TASK)
    await session.reset()

    observation = await session.step(calling(call))

    assert observation.messages[0]["content"] == f"Error during execution: {result}"


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("power", {"base": 7, "exponent": 10**12}),
        ToolCall("logarithm", {"value": 3, "base": 7, "precision": 10**9}),
        ToolCall("round_number", {"number": 5, "decimal_places": -(10**9)}),
    ],
)
def test_arithmetic_without_end_is_refused(call: ToolCall) -> None:
    (toolbox,) = open_toolboxes(_entry_with("multi_turn_base", "MathAPI"))

    assert toolbox.call(call).startswith("Error during execution: ")


async def test_a_reply_without_a_call_goes_on_to_the_next_user_turn() -> None:
    session = open_session(FILE_SYSTEM_TASK)
    first = await session.reset()

    second = await session.step(saying("There is nothing to do."))

    assert second.messages[0]["role"] == "user"
    assert second.messages != first.messages
    assert second.tools is None


async def test_one_malformed_call_spoils_the_whole_reply() -> None:
    session = open_session(FILE_SYSTEM_TASK)
    await session.reset()

    observation = await session.step(saying("", malformed=('{"name": "ls"',)))

    assert observation.messages[0]["role"] == "user"


async def test_the_episode_ends_after_the_last_user_turn() -> None:
    session = open_session(FILE_SYSTEM_TASK)

    observation = await play(session, [[]] * 4)

    assert observation.done
    assert observation.stop_reason is StopReason.DONE
    with pytest.raises(EnvironmentFailed, match="closed or over"):
        await session.step(calling(LS))


async def test_the_last_step_of_a_turn_ends_the_episode() -> None:
    session = open_session(FILE_SYSTEM_TASK, max_steps_per_turn=3)
    await session.reset()

    observations = [await session.step(calling(LS)) for _ in range(3)]
    score = await session.score()

    assert [observation.done for observation in observations] == [False, False, True]
    assert observations[-1].stop_reason is StopReason.STEP_LIMIT
    assert score.value == 0.0
    assert score.details["error_type"] == "multi_turn:force_terminated"
    assert score.details["calls"] == 3


async def test_steps_are_counted_per_user_turn() -> None:
    session = open_session(FILE_SYSTEM_TASK, max_steps_per_turn=3)

    observation = await play(session, [[(LS,), (LS,)]] * 4)

    assert observation.stop_reason is StopReason.DONE


@pytest.mark.parametrize(("how", "document"), [("full", '{"name": "sort"'), ("compact", "sort(")])
async def test_a_late_tool_is_withheld_until_its_turn(how: str, document: str) -> None:
    entry = find_entry(LATE_TOOL_TASK)
    assert entry is not None
    ((turn, (name,)),) = entry.missed_function.items()
    assert name == "sort"
    session = open_session(LATE_TOOL_TASK, tool_documents=how)
    observation = await session.reset()
    assert observation.tools is not None
    assert name not in {tool["name"] for tool in observation.tools}

    for _ in range(int(turn)):
        observation = await session.step(saying())

    content = observation.messages[0]["content"]
    assert content.startswith(document)
    assert content.endswith(
        "\nI have updated some more functions you can choose from. What about now?"
    )
    assert observation.tools is not None
    assert observation.tools[-1]["name"] == name
    assert observation.tools_in_messages


async def test_an_episode_that_was_cut_short_is_wrong() -> None:
    session = open_session(FILE_SYSTEM_TASK)
    await session.reset()

    score = await session.score()

    assert score.value == 0.0
    assert score.details["error_type"] == "multi_turn:inference_error"


async def test_an_unknown_task_is_a_failed_set_up() -> None:
    with pytest.raises(SetUpFailed, match="multi_turn_base_900"):
        await open_session("multi_turn_base_900").reset()


async def test_tools_do_not_change_the_calls_they_are_given() -> None:
    updates = {"priority": 3, "tags": ["a"]}
    call = ToolCall("edit_ticket", {"ticket_id": 1, "updates": copy.deepcopy(updates)})
    (toolbox,) = open_toolboxes(_entry_with("multi_turn_base", "TicketAPI"))

    toolbox.call(call)

    assert call.arguments["updates"] == updates


async def test_long_context_records_are_not_shared_between_samples() -> None:
    entry = _entry_with("multi_turn_long_context", "TravelAPI")
    first, second = (open_toolboxes(entry)[0] for _ in range(2))
    before = json.dumps(vars(second.instances["TravelAPI"])["credit_card_list"])

    for card in vars(first.instances["TravelAPI"])["credit_card_list"].values():
        card["balance"] = -1

    assert json.dumps(vars(second.instances["TravelAPI"])["credit_card_list"]) == before
    (third,) = open_toolboxes(entry)
    assert json.dumps(vars(third.instances["TravelAPI"])["credit_card_list"]) == before


def test_turns_without_ground_truth_are_executed_and_not_judged() -> None:
    entry = find_entry(LATE_TOOL_TASK)
    assert entry is not None
    turns = ground_truth(entry)
    empty = next(index for index, calls in enumerate(entry.ground_truth) if not calls)
    turns[empty] = [(ToolCall("pwd", {}),)]

    assert check(entry, turns).is_valid
