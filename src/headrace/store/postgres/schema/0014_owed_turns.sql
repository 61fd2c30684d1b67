-- Claims remember what each tenant is owed. Functions whose arguments or results have changed are created again.
drop function if exists headrace.claim(text[], int4, uuid, uuid, interval, text, jsonb, int2[], int2[], int4[], text[],
    int2[], text[], text[], int4[], int2[], text[], text[], int8[], int2[], text[], text[], int8[], int8[], int4, int4, timestamptz,
    int4, bool, int8, bool);
drop function if exists headrace.take_turns(text, int2, int4, bool, jsonb, text, int4);
drop function if exists headrace.survey_turns(text, int2, int4, jsonb, text, text, int4);
drop function if exists headrace.passed_over(text, int2, text, text[]);
