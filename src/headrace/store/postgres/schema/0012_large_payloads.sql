-- Large payloads: claim takes two arguments more and answers one column more.
drop function if exists headrace.claim(text[], int4, uuid, uuid, interval, text, jsonb, int2[], int2[], int4[], text[],
    int2[], text[], text[], int4[], int2[], text[], text[], int8[], int2[], text[], text[], int8[], int8[], int4, int4, timestamptz,
    int4, bool);
