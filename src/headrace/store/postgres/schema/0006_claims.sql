-- Claims: functions whose arguments or answers have changed are made anew.
select;
