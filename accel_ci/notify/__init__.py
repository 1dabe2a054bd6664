"""Tell the right people: one message for each trouble when it begins and when it ends, by chat, mail or GitHub issue."""
