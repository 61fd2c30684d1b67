"""Where the views are."""

from django.urls import path
from shop import views

urlpatterns = [path("orders", views.order), path("jobs/<uuid:id>", views.job)]
