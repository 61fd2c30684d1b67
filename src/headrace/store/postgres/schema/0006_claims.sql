-- Claims: functions whose arguments or results have changed are created again.
drop function if exists headrace.claim(text[], int4, uuid, uuid, interval, text, jsonb, int2[], int2[], int4[], text[],
    int2[], text[], text[], int4[], int2[], text[], text[], int8[], int2[], text[], text[], int8[], int8[], int4, int4, timestamptz);
drop function if exists headrace.take_limited(text, int2, int4, uuid, timestamptz, bool, bool, text, jsonb, text[], text, int4, text[], int8[], int4);
drop function if exists headrace.count_units(text[], bool, timestamptz);
drop function if exists headrace.survey_turns(text, int2, int4, jsonb, text, text, int4);
drop function if exists headrace.take_one(text, int2, text, text, int4, jsonb, bool);
